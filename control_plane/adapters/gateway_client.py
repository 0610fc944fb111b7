"""Clients of a running `tidegate`, for the command line: its admin API and its data port."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx

from control_plane.domain.errors import ControlPlaneError, InvalidRequest, UpstreamUnavailable

_LOAD_TIMEOUT_S = 600.0
_INFER_TIMEOUT_S = 60.0


class AdminClient:
    """Speaks to `api/admin`. Every method raises UpstreamUnavailable (nobody there) or InvalidRequest (its refusal)."""

    def __init__(self, url: str) -> None:
        self._url = url

    def list_models(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call("GET", "/models")
        return found

    def load(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._call("POST", f"/models/{quote(name, safe='')}/load")
        return found

    def unload(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._call("POST", f"/models/{quote(name, safe='')}/unload")
        return found

    def _call(self, method: str, path: str) -> Any:
        with httpx.Client(trust_env=False, timeout=_LOAD_TIMEOUT_S) as client:
            return _json(self._url, lambda: client.request(method, self._url + path))


class EmbeddingClient:
    """Sends texts to the `text_embedding` ensemble over one kept connection."""

    def __init__(self, url: str) -> None:
        """`url` may be `unix:PATH`."""
        self._url = url
        path = url.removeprefix("unix:")
        is_unix = path != url
        self._client = httpx.Client(
            base_url="http://localhost" if is_unix else url,
            transport=httpx.HTTPTransport(uds=path) if is_unix else None,
            trust_env=False,
            timeout=_INFER_TIMEOUT_S,
        )

    def embed(self, texts: list[str], model: str) -> list[list[float]]:
        """One embedding of 384 numbers per text. Raises as AdminClient's methods."""
        tensor = {"name": "TEXT", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}
        answer = _json(
            self._url,
            lambda: self._client.post(f"/v2/models/{quote(model, safe='')}/infer", content=json.dumps({"inputs": [tensor]})),
        )
        try:
            output = answer["outputs"][0]
            rows, width = output["shape"]
            embeddings = [output["data"][row * width : (row + 1) * width] for row in range(rows)]
        except (KeyError, IndexError, TypeError, ValueError) as exc:
            raise InvalidRequest(f"model {model!r} does not answer with one embedding per text") from exc
        return embeddings

    def close(self) -> None:
        self._client.close()


def _json(url: str, send: Any) -> Any:
    try:
        response = send()
        if response.is_success:
            return response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        raise UpstreamUnavailable(f"no answer from {url}: {exc}; is `tidegate serve` running there?") from exc
    raise _refusal(response)


def _refusal(response: httpx.Response) -> ControlPlaneError:
    try:
        text = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        text = response.text
    return InvalidRequest(f"{text} (HTTP {response.status_code})")
