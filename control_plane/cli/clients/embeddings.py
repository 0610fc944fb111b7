"""Client of models that embed texts, for `tidegate embed`; also reads the embeddings in the result of a job."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from control_plane.admin.connection import asked, authorization, connected, trusted_at
from control_plane.core.errors import InvalidRequest

_TIMEOUT_S = 60.0


class EmbeddingClient:
    """Client of an embedding ensemble on the data port; keeps one connection open."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """`url` may be `unix:PATH`. Raises as `admin/client.AdminClient` does."""
        self._url = url
        self._client = connected(url, _TIMEOUT_S, authorization(api_key), trusted_at(url))

    def embed(self, texts: list[str], model: str) -> list[list[float]]:
        """Return one embedding per text, of as many numbers as the model gives. Raises as AdminClient's
        methods do.
        """
        tensor = {"name": "TEXT", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}
        answer = asked(
            self._url,
            lambda: self._client.post(f"/v2/models/{quote(model, safe='')}/infer", content=json.dumps({"inputs": [tensor]})),
        )
        return embeddings_in(answer, model, len(texts))

    def close(self) -> None:
        self._client.close()


def embeddings_in(answer: Any, model: str, texts: int) -> list[list[float]]:
    """Return the embeddings in the answer of `model` to so many texts, one for each. Raises InvalidRequest: it has answered otherwise."""
    try:
        output = answer["outputs"][0]
        count, width = output["shape"]
        numbers = [float(number) for number in output["data"]]
    except (KeyError, IndexError, TypeError, ValueError):
        count, width, numbers = 0, 0, []
    if count != texts or len(numbers) != count * width:
        raise InvalidRequest(f"model {model!r} does not answer with one embedding per text")
    return [numbers[row * width : (row + 1) * width] for row in range(count)]
