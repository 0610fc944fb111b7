"""Codec between texts (or tokens) and the inference requests of a text model; tensors travel as binary data.

Source: KServe v2 inference protocol and Triton's binary tensor data extension.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from struct import Struct, error, unpack
from typing import Any, NamedTuple

import orjson

from control_plane.core.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    UpstreamFailed,
    UpstreamUnavailable,
)
from control_plane.embeddings.domain.text_model import TextModel, TokenInputs
from control_plane.protocols.header_forwarding import BACKGROUND_MARK
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.protocols.kserve.tensors.bytes_tensor import encode_bytes_elements

_ID_BYTES = 8  # of a token id, INT64
_ONE = b"\1\0\0\0\0\0\0\0"  # 1 as INT64, little-endian
_COUNT = Struct("<i")
_JSON_LENGTH = b"Inference-Header-Content-Length"
_HEADER_BYTES = re.compile(rb"\r\nInference-Header-Content-Length: *([0-9]{1,18})\r\n", re.IGNORECASE)

_ERRORS: dict[int, Callable[[str], ControlPlaneError]] = {
    400: InvalidRequest,
    404: ModelNotFound,
    503: partial(UpstreamUnavailable, is_answer=True),
    504: DeadlineExceeded,
}
"""The error that an HTTP status of Triton's means for an embeddings call; UpstreamFailed for all others."""


class EmbeddedText(NamedTuple):
    """The embedding of one text."""

    values: bytes
    """[dimensions] FP32, little-endian."""
    tokens: int
    """The number of tokens in the text, which OpenAI's API reports as usage."""

    def to_bytes(self) -> bytes:
        """Encode for the cache: the token count as INT32, then the values."""
        return _COUNT.pack(self.tokens) + self.values


def read_embedded_text(kept: bytes, dimensions: int) -> EmbeddedText | None:
    """Decode what `to_bytes` wrote; None if the size does not fit a model of `dimensions`, as after a change
    of model."""
    if len(kept) != _COUNT.size + 4 * dimensions:
        return None
    return EmbeddedText(kept[_COUNT.size :], _COUNT.unpack_from(kept)[0])


def infer_request(model: TextModel, target: bytes, inputs: Sequence[bytes], *, are_tokens: bool, yields: bool = False) -> HttpRequest:
    """Encode an inference request for one batch of `inputs`; `target` is the path of the model's `/infer`, and `yields` says
    whether it is work in the background.
    """
    tensors = [*(_token_tensors(model, model.token_inputs, inputs) if are_tokens and model.token_inputs else _text_tensors(model, inputs))]
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in (model.embedding, model.tokens) if name is not None]
    header = orjson.dumps({"inputs": [tensor for tensor, _ in tensors], "outputs": outputs})
    length = (_JSON_LENGTH, b"%d" % len(header))
    fields = [(b"Content-Type", b"application/octet-stream"), length]
    if yields:
        fields.append(BACKGROUND_MARK)
    return HttpRequest(b"POST", target, fields, b"".join([header, *(data for _, data in tensors)]))


def json_bytes_of(request: HttpRequest) -> int:
    """The bytes of JSON before the tensors of a request that `infer_request` has made."""
    return int(dict(request.headers)[_JSON_LENGTH])


def read_answer(model: TextModel, answer: HttpAnswer, count: int) -> list[tuple[bytes, int | None]]:
    """Decode an answer: for each of `count` inputs the embedding, and the token count where the model returns
    it.

    Raises InvalidRequest, ModelNotFound, UpstreamUnavailable or DeadlineExceeded by Triton's status, and
    UpstreamFailed for other statuses and for an answer of another shape than [count, dimensions].
    """
    if answer.status != 200:
        raise _ERRORS.get(answer.status, UpstreamFailed)(_text_of_error(answer))
    try:
        outputs = dict(_outputs(answer))
        values, size = outputs[model.embedding], 4 * model.dimensions
        tokens = unpack(f"<{count}i", outputs[model.tokens]) if model.tokens is not None else [None] * count
        if len(values) != count * size:
            raise ValueError("not an embedding for each")
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, error) as exc:
        raise UpstreamFailed(f"the model's answer is not {count} embeddings of {model.dimensions} numbers") from exc
    return [(values[row * size : row * size + size], tokens[row]) for row in range(count)]


def _text_tensors(model: TextModel, texts: Sequence[bytes]) -> Iterator[tuple[dict[str, Any], bytes]]:
    yield _tensor(model.text, "BYTES", [len(texts), 1] if model.max_batch_size else [1], encode_bytes_elements([*texts]))


def _token_tensors(model: TextModel, names: TokenInputs, rows: Sequence[bytes]) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Ids and attention mask, both INT64 [batch, longest], or [longest] of a model without a batch; rows are padded with
    zeros, which the mask marks."""
    longest = max(map(len, rows))
    length = longest // _ID_BYTES
    shape = [len(rows), length] if model.max_batch_size else [length]
    yield _tensor(names.ids, "INT64", shape, b"".join([row.ljust(longest, b"\0") for row in rows]))
    yield _tensor(names.mask, "INT64", shape, b"".join([(_ONE * (len(row) // _ID_BYTES)).ljust(longest, b"\0") for row in rows]))


def _tensor(name: str, datatype: str, shape: list[int], data: bytes) -> tuple[dict[str, Any], bytes]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}, data


def _outputs(answer: HttpAnswer) -> Iterator[tuple[str, bytes]]:
    length = _HEADER_BYTES.search(answer.head)
    at = int(length[1]) if length is not None else len(answer.body)
    for output in orjson.loads(answer.body[:at])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        yield output["name"], bytes(answer.body[at : at + size])
        at += size


def _text_of_error(answer: HttpAnswer) -> str:
    try:
        return str(orjson.loads(answer.body)["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"Triton answered with status {answer.status}"
