"""Incremental JSON parser for large OpenAI embeddings requests; its result equals that of parsing the whole
body.

Only the list of inputs may be large: it is found by a scanner and parsed a few texts at a time, so that no
step holds up the event loop. The rest of the body must be small. The scanner finds strings and brackets
exactly in valid JSON only; invalid JSON is still refused, because every byte also passes through the JSON
parser in one piece or another.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import InvalidRequest

Body = bytes | bytearray

MAX_TEXTS = 2048
MAX_TEXT_BYTES = 2**18
"""More than any model reads of one text; it bounds the longest step of the parser."""
MAX_TOKEN = 2**31 - 1

_MAX_ENTRY_BYTES = 6 * MAX_TEXT_BYTES + 64
"""Size of one input as JSON: each byte of a text may be written as an escape of six."""
_MAX_REST_BYTES = 16 * 1024
_PIECE_BYTES = 128 * 1024
_MAX_TOKENS = 2**15
"""Strings, brackets and what is between them in a request: twice as many as the most inputs and the rest can have."""
_TOKENS_PER_STEP = 1024

# Possessive quantifiers (`*+`): the patterns never backtrack, so a hostile body costs linear time only.
_SPACE = rb"[ \t\r\n]*+"
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_TOKEN = re.compile(_STRING + rb'|[{}\[\]]|[^"{}\[\]]++', re.DOTALL)
_COLON = re.compile(_SPACE + rb":" + _SPACE)
_ENTRY = re.compile(rb"%b(?:%b|\[[-0-9, \t\r\n]*+\])%b" % (_SPACE, _STRING, _SPACE), re.DOTALL)
_ARRAY_START = re.compile(rb"\[%b(?=[\"\[])" % _SPACE)
_SCALAR = re.compile(rb"%b|\[[-0-9, \t\r\n]*+\]" % _STRING, re.DOTALL)
_NESTS = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


def large_request_steps(body: Body) -> Steps[Any]:
    """Parse as `orjson.loads` does, in steps.

    Raises InvalidRequest: the body is not valid JSON, or is large without its input.
    """
    rest, inputs, done, at, depth = bytearray(), None, 0, 0, 0
    while at < len(body):
        token = _match(_TOKEN, body, at, "the body is not valid JSON")
        at = token.end()
        depth += _NESTS.get(token[0], 0)
        colon = _COLON.match(body, at, at + _PIECE_BYTES) if depth == 1 and token[0][:1] == b'"' else None
        if colon is not None and _loads(token[0]) == "input":
            rest += body[done : colon.end()] + b"null"  # `rest` stays valid JSON, with a placeholder for the inputs
            inputs, at = yield from _value_steps(body, colon.end())
            done = at
        if at - done + len(rest) > _MAX_REST_BYTES:
            raise InvalidRequest(_TOO_LARGE if done else _NO_INPUT, field=None if done else "input")
    fields = _loads(bytes(rest + body[done:]))
    return {**fields, "input": inputs} if done and type(fields) is dict else fields


def member_steps(text: bytes, name: str) -> Steps[tuple[Any, bytes]]:
    """Parse a JSON object but for its member `name`, in steps; returns it with `{}` there, and that member's text, which
    is empty where it is no object. Of several the last one counts, be it an object or not.

    Raises InvalidRequest: it is not valid JSON, is large without that member, or has too many values.
    """
    rest, member, done, at, depth, tokens, began, paused = bytearray(), b"", 0, 0, 0, 0, -1, 0
    while at < len(text):
        token = _match(_TOKEN, text, at, "is not valid JSON, or has a string longer than any input may be")
        at, tokens = token.end(), tokens + 1
        depth += _NESTS.get(token[0], 0)
        if began >= 0:
            if depth == 1:
                member, done, began = text[began:at], at, -1
        elif depth == 1 and (colon := _object_after(token, text)) is not None and _loads(token[0]) == name:
            rest += text[done : colon.end()] + b"{}"
            began = at = done = colon.end()
        if (0 if began >= 0 else at - done) + len(rest) > _MAX_REST_BYTES:
            raise InvalidRequest(f"is larger than {_MAX_REST_BYTES} bytes without its {name}")
        if tokens == _MAX_TOKENS:
            raise InvalidRequest(f"has more strings and lists than a request of {MAX_TEXTS} inputs can have")
        if tokens % _TOKENS_PER_STEP == 0 or at - paused >= _PIECE_BYTES:
            paused = at
            yield
    return _loads(bytes(rest + text[done:])), member


def _object_after(token: re.Match[bytes], text: bytes) -> re.Match[bytes] | None:
    """The colon after a key whose value is an object."""
    colon = _COLON.match(text, token.end(), token.end() + _PIECE_BYTES) if token[0][:1] == b'"' else None
    return colon if colon is not None and text[colon.end() : colon.end() + 1] == b"{" else None


def _value_steps(body: Body, at: int) -> Steps[tuple[Any, int]]:
    """Parse the value of `input` that begins at `at`; returns it and the position after it."""
    if _ARRAY_START.match(body, at, at + _PIECE_BYTES) is None:
        scalar = _match(_SCALAR, body, at, _WHAT_IT_IS)
        yield
        return _loads(scalar[0]), scalar.end()
    entries, began, at = list[Any](), at + 1, at + 1
    for _ in range(MAX_TEXTS + 1):
        end = _match(_ENTRY, body, at, _WHAT_IT_IS).end()
        is_last = body[end : end + 1] == b"]"
        if not is_last and body[end : end + 1] != b",":
            raise InvalidRequest(_WHAT_IT_IS, field="input")
        at = end + 1
        if is_last or end - began > _PIECE_BYTES:
            entries += _loads(b"[" + body[began:end] + b"]")
            began = at
            yield
        if is_last:
            return entries, at
    raise InvalidRequest(f"input must hold between 1 and {MAX_TEXTS} texts", field="input")


_WHAT_IT_IS = f"input must be texts or lists of token ids from 0 to {MAX_TOKEN}, none of them beyond its limit, in valid JSON"
_TOO_LARGE = f"without its input the request is larger than {_MAX_REST_BYTES} bytes"
_NO_INPUT = f"input is missing: the first {_MAX_REST_BYTES} bytes of a large body must have it, as a JSON object in UTF-8"


def _match(pattern: re.Pattern[bytes], body: Body, at: int, otherwise: str) -> re.Match[bytes]:
    match = pattern.match(body, at, at + _MAX_ENTRY_BYTES)
    if match is None:
        raise InvalidRequest(otherwise, field="input" if pattern is not _TOKEN else None)
    return match


def _loads(text: Body) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"the body is not valid JSON: {exc}") from exc
