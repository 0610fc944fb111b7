"""Triton with one text-embedding model, over HTTP: the embedding of a text is its length, its first and its
last byte.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import pack, unpack_from
from typing import Any

import orjson

from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer

DIMENSIONS = 3
NOT_FOUND = make_answer(404, b'{"error":"Request for unknown model: it is not found"}')


def embedding_of(text: bytes, loads: int = 0) -> list[float]:
    return [float(len(text)), float(text[0]), text[-1] + 1000.0 * loads]


@dataclass
class FakeTextModel:
    """`tests.fakes.FakeHttp.answer` that computes embeddings; the texts of each batch it computed are in
    `batches`."""

    name: str = "m"
    max_batch_size: int = 4
    counts_tokens: bool = True
    takes_tokens: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    """Model configuration to show in place of its own."""
    failure: Callable[[HttpRequest], HttpAnswer | None] = lambda request: None
    """Returns an answer to an inference in place of the embeddings, or None; it may raise, too."""
    loads: int = 0
    """A test that loads the model anew counts this up: each load has embeddings of its own."""
    batches: list[list[bytes]] = field(default_factory=list)
    targets: list[bytes] = field(default_factory=list)
    configs_asked: int = 0

    @property
    def computed(self) -> list[bytes]:
        return [text for batch in self.batches for text in batch]

    def __call__(self, request: HttpRequest) -> HttpAnswer:
        self.targets.append(request.target)
        if not request.target.startswith(b"/v2/models/%b/" % self.name.encode()):
            return NOT_FOUND
        if request.target.endswith(b"/config"):
            self.configs_asked += 1
            return make_answer(200, self.config_bytes())
        return self.failure(request) or self._infer(request)

    def config_bytes(self) -> bytes:
        """Return the model's configuration as Triton shows it."""
        return orjson.dumps(self.config or self._config())

    def _config(self) -> dict[str, Any]:
        tokens = [{"name": name, "data_type": "TYPE_INT64", "dims": [-1], "optional": True} for name in ("INPUT_IDS", "ATTENTION_MASK")]
        text = {"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1], "optional": self.takes_tokens}
        outputs = [{"name": "EMBEDDING", "data_type": "TYPE_FP32", "dims": [DIMENSIONS]}]
        if self.counts_tokens:
            outputs.insert(0, {"name": "TOKENS", "data_type": "TYPE_INT32", "dims": [1]})
        inputs = [text, *(tokens if self.takes_tokens else [])]
        return {"name": self.name, "max_batch_size": self.max_batch_size, "input": inputs, "output": outputs}

    def _infer(self, request: HttpRequest) -> HttpAnswer:
        length = int(request.header(b"inference-header-content-length") or 0)
        header, data = orjson.loads(request.body[:length]), bytes(request.body[length:])
        shape = header["inputs"][0]["shape"]
        rows = _texts(data) if header["inputs"][0]["datatype"] == "BYTES" else _token_rows(data, shape)
        assert len(rows) == shape[0] <= max(self.max_batch_size, 1)
        self.batches.append(rows)
        outputs = {
            "EMBEDDING": array("f", [number for row in rows for number in embedding_of(row, self.loads)]).tobytes(),
            "TOKENS": pack(f"<{len(rows)}i", *(len(row) for row in rows)),
        }
        wanted = [each["name"] for each in header["outputs"]]
        said = [{"name": name, "parameters": {"binary_data_size": len(outputs[name])}} for name in wanted]
        head = orjson.dumps({"outputs": said})
        body = head + b"".join(outputs[name] for name in wanted)
        return make_answer(200, body, headers=[(b"Inference-Header-Content-Length", b"%d" % len(head))])


def _texts(data: bytes) -> list[bytes]:
    texts, at = [], 0
    while at < len(data):
        (size,) = unpack_from("<I", data, at)
        texts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return texts


def _token_rows(data: bytes, shape: list[int]) -> list[bytes]:
    """Return the tokens that are not masked, one byte each."""
    numbers = array("q", data)
    ids, mask = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    rows = range(shape[0])
    return [bytes(ids[row * shape[1] + at] for at in range(shape[1]) if mask[row * shape[1] + at]) for row in rows]


def no_parts(frame: bytes, principal: object) -> Any:
    """As `embeddings/dispatched_batches.PartOf`, where no model is sharded."""
    raise AssertionError("no model is sharded here")
