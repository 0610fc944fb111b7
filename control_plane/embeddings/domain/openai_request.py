"""Codec of OpenAI's embeddings API: parses requests and writes answers.

A request of 2048 pages is megabytes of JSON, and its answer is larger: large requests are parsed in pieces
(`openai_large_input`) and answers are written row by row, in steps (`core/algorithms/steps`). Unknown fields are
ignored, as OpenAI ignores them; `user` is one of them. Source:
https://platform.openai.com/docs/api-reference/embeddings.
"""

from __future__ import annotations

from array import array
from binascii import b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import InvalidRequest
from control_plane.embeddings.domain.embedding_tensors import EmbeddedText
from control_plane.embeddings.domain.openai_large_input import MAX_TEXT_BYTES, MAX_TEXTS, MAX_TOKEN, large_request_steps
from control_plane.protocols.openai import read_model

MAX_TOKENS = 8192
"""Limit of one input that is sent as tokens: OpenAI's own."""

_LARGE_BYTES = 128 * 1024
"""Parsing this much takes half a millisecond."""
_ROWS_PER_STEP = 128
"""Writing the numbers of so many rows takes about 1 ms."""

_KINDS = "a string, a list of strings, a list of tokens or a list of lists of tokens"


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """A validated embeddings request."""

    model: str
    inputs: tuple[bytes, ...]
    """Each input as UTF-8 text, or as token ids in INT64, little-endian."""
    are_tokens: bool
    is_base64: bool
    dimensions: int | None
    """None: as many as the model has."""


def request_steps(body: bytes | bytearray) -> Steps[EmbeddingsRequest]:
    """Parse and validate a request's body, in steps.

    Raises InvalidRequest, which names the wrong field; ModelNotFound: no model can have that name.
    """
    fields = (yield from large_request_steps(body)) if len(body) > _LARGE_BYTES else _parse(body)
    if type(fields) is not dict:
        raise InvalidRequest("the body must be a JSON object")
    model, dimensions, form = read_model(fields), fields.get("dimensions"), fields.get("encoding_format")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise InvalidRequest("dimensions must be a whole number above 0", field="dimensions")
    if form not in (None, "float", "base64"):
        raise InvalidRequest("encoding_format must be 'float' or 'base64'", field="encoding_format")
    inputs, are_tokens = yield from _inputs_steps(fields.get("input"))
    return EmbeddingsRequest(model, inputs, are_tokens, form == "base64", dimensions)


def answer_steps(rows: Sequence[EmbeddedText], *, model: str, is_base64: bool) -> Steps[bytes]:
    """Write the answer's body, in steps: one embedding for each of `rows`, in order."""
    pieces = [b'{"object":"list","data":[']
    for index, row in enumerate(rows):
        if is_base64:
            numbers = b'"%b"' % b2a_base64(row.values, newline=False)
        else:
            numbers = orjson.dumps(np.frombuffer(row.values, dtype=np.float32), option=orjson.OPT_SERIALIZE_NUMPY)
        pieces.append(b'%b{"object":"embedding","index":%d,"embedding":%b}' % (b"," if index else b"", index, numbers))
        if index % _ROWS_PER_STEP == _ROWS_PER_STEP - 1:
            yield
    tokens = sum([row.tokens for row in rows])
    pieces.append(b'],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (orjson.dumps(model), tokens, tokens))
    return b"".join(pieces)


def _parse(body: bytes | bytearray) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"the body is not valid JSON: {exc}") from exc


def _inputs_steps(value: Any) -> Steps[tuple[tuple[bytes, ...], bool]]:
    """Validate the inputs, in steps; returns them and whether they are tokens."""
    if value is None:
        raise InvalidRequest(f"you must provide an input: {_KINDS}", field="input")
    # A list of numbers is one input, sent as tokens; a list of strings or of lists is several inputs.
    entries = value if type(value) is list and (not value or type(value[0]) in (str, list)) else [value]
    if not 0 < len(entries) <= MAX_TEXTS:
        raise InvalidRequest(f"input must hold between 1 and {MAX_TEXTS} texts, got {len(entries)}", field="input")
    are_tokens = type(entries[0]) is list
    read, found, step_bytes = _tokens if are_tokens else _text, list[bytes](), 0
    for index, entry in enumerate(entries):
        found.append(read(entry, f"input[{index}]" if entries is value else "input"))
        step_bytes += len(found[-1])
        if step_bytes > _LARGE_BYTES:
            step_bytes = 0
            yield
    return tuple(found), are_tokens


def _text(entry: Any, name: str) -> bytes:
    if type(entry) is not str:
        raise InvalidRequest(f"input must be {_KINDS}" if name == "input" else f"{name} must be a string as input[0] is", field="input")
    if not entry:
        raise InvalidRequest(f"{name} cannot be an empty string", field="input")
    text = entry.encode()  # the parser has refused halves of surrogate pairs
    if len(text) > MAX_TEXT_BYTES:
        raise InvalidRequest(f"{name} is longer than {MAX_TEXT_BYTES} bytes", field="input")
    return text


def _tokens(entry: Any, name: str) -> bytes:
    if type(entry) is not list:
        raise InvalidRequest(f"{name} must be a list of tokens as input[0] is", field="input")
    if not all(type(token) is int and 0 <= token <= MAX_TOKEN for token in entry):
        texts = "strings, or " if name == "input" else ""
        raise InvalidRequest(f"{name} must hold {texts}token ids: whole numbers from 0 to {MAX_TOKEN}", field="input")
    if not 0 < len(entry) <= MAX_TOKENS:
        raise InvalidRequest(f"{name} must hold between 1 and {MAX_TOKENS} tokens, got {len(entry)}", field="input")
    return array("q", entry).tobytes()
