"""Codec of cached responses: without the request id, which is the caller's own; each caller gets its own back.

Triton's bytes are stored as they came; only the field `id` and, over HTTP, the lengths in the
head are written anew, and what the head says of that one answer is left out.

Called by the KServe frontends and `inference/caching/cached_inference`. It knows no models and no cache: bytes in,
bytes out.

Source: KServe v2 inference protocol (JSON, `grpc_service.proto`) and Triton's binary tensor data extension.
"""

from __future__ import annotations

import re
from struct import Struct

import orjson

from control_plane.cache.keys import JSON_STRING
from control_plane.core.errors import ControlPlaneError, InvalidRequest
from control_plane.core.infer_call import CacheStatus
from control_plane.protocols.content_encoding import decoded_pieces
from control_plane.protocols.grpc import HEAD, GrpcAnswer, frame_message, status_fields, with_trailer
from control_plane.protocols.http1 import HttpAnswer
from control_plane.protocols.kserve.requests.body_limits import InflateBound
from control_plane.protocols.protobuf_fields import fields, varint

HEADER = "tidegate-cache"
"""Response header (HTTP) or trailer (gRPC) that says what the cache did: hit, miss, joined, ..."""

_ANSWERS_ID = re.compile(rb'\{"id":' + JSON_STRING + rb",", re.DOTALL)
_WRITTEN_ANEW = rb"content-length|inference-header-content-length|content-encoding"
_OF_ONE_ANSWER = rb"date|age|set-cookie|endpoint-load-metrics"
"""Fields that hold for the first caller or the moment: of a proxy before Triton, and of Triton's load where one asks."""
_NOT_KEPT = re.compile(rb"\r\n(?:%b|%b):[^\r\n]*" % (_WRITTEN_ANEW, _OF_ONE_ANSWER), re.IGNORECASE)
_JSON_LENGTH = re.compile(rb"\r\ninference-header-content-length:[ \t]*(\d{1,18})", re.IGNORECASE)
_ENCODING = re.compile(rb"\r\ncontent-encoding:[^\r\n]*", re.IGNORECASE)
_MAX_BYTES = 2**22
"""Largest response that is parsed for the cache: a larger one would hold up the event loop for too long."""
_DECODED = InflateBound(2**21, "the answer is too large to be kept")
"""Largest compressed response, once it is decoded; half of `_MAX_BYTES`, since inflating takes time as well.
"""
_LAYOUT = Struct("<IIB")
"""Header of a cached HTTP response: bytes of its head, bytes of its JSON, and whether binary data may follow
the JSON.
"""

_COMPUTE = frozenset(("no-cache", "no-store", "max-age=0"))
"""Directives of a request's Cache-Control by which a caller asks for a response that is computed now."""

_ANSWERS_ID_TAG = 3 << 3 | 2
"""Tag of a ModelInferResponse's id."""


def forbids_cached_answer(cache_control: str | None) -> bool:
    """Whether a request's Cache-Control asks for a computed response (RFC 9111, 5.2.1); all fields of that
    name in one text.
    """
    return cache_control is not None and not _COMPUTE.isdisjoint(word.strip().lower() for word in cache_control.split(","))


def encode_http(answer: HttpAnswer, *, request_id: str) -> bytes | None:
    """Encode a successful response to the request `request_id` for the cache; None where it is not certain
    which bytes are its id.

    `decode_http` is the inverse.
    """
    body = _decoded(answer) if answer.status == 200 and len(answer.body) <= _MAX_BYTES else None
    if body is None:
        return None
    length = _JSON_LENGTH.search(answer.head)
    json = body if length is None else body[: int(length.group(1))]
    data = body[len(json) :]
    found = _ANSWERS_ID.match(json)
    # Triton echoes the id as the first member, and only if the request had one. A response that does
    # otherwise was made by something else on the way; `{}` has no first member to which an id could be added.
    if (found is None) is not (not request_id) or not json.startswith(b"{") or len(json) < 3:
        return None
    bare = json if found is None else b"{" + json[found.end() :]
    head = _NOT_KEPT.sub(b"", answer.head)[:-4]
    return b"".join((_LAYOUT.pack(len(head), len(bare), length is not None), head, bare, data))


def _decoded(answer: HttpAnswer) -> bytes | None:
    """Return the response's body without its Content-Encoding, which every client understands; None if it
    cannot be decoded.
    """
    if _ENCODING.search(answer.head) is None:
        return bytes(answer.body)
    try:
        return b"".join(decoded_pieces(answer.body, _DECODED))
    except ControlPlaneError:
        return None


def decode_http(kept: bytes, status: CacheStatus, *, request_id: str) -> HttpAnswer:
    """Decode a cached response as Triton would have given it to the request `request_id`, with the cache's
    status in the head.
    """
    head_bytes, json_bytes, has_json_length = _LAYOUT.unpack_from(kept)
    start = _LAYOUT.size + head_bytes
    body = kept[start:]
    if request_id:
        field = b'"id":%b,' % orjson.dumps(request_id)
        body = b"{%b%b" % (field, body[1:])
        json_bytes += len(field)
    json_length = b"Inference-Header-Content-Length: %d\r\n" % json_bytes if has_json_length else b""
    head = b"%b\r\n%bContent-Length: %d\r\ntidegate-cache: %b\r\n\r\n" % (
        kept[_LAYOUT.size : start],
        json_length,
        len(body),
        status.value.encode(),
    )
    return HttpAnswer(200, head, body)


def encode_grpc(answer: GrpcAnswer) -> bytes | None:
    """Encode a successful response for the cache, as its message without the id; None if it is compressed or
    not protobuf.

    `decode_grpc` is the inverse.
    """
    if answer.code != 0 or sum(map(len, answer.body)) > _MAX_BYTES:
        return None
    frame = b"".join(answer.body)
    if not frame or frame[0] != 0:  # the first byte of a gRPC frame says whether the message is compressed
        return None
    try:
        return b"".join(field for tag, field, _ in fields(memoryview(answer.message)) if tag != _ANSWERS_ID_TAG)
    except InvalidRequest:
        return None


def decode_grpc(kept: bytes, status: CacheStatus, *, request_id: str) -> GrpcAnswer:
    """Decode a cached response for the request `request_id`, with the cache's status in a trailer."""
    message = kept
    # Fields of a protobuf message may come in any order, so the id can follow the rest: nothing has to be
    # moved.
    if request_id:
        encoded = request_id.encode()
        message = b"".join((kept, varint(_ANSWERS_ID_TAG), varint(len(encoded)), encoded))
    return mark_grpc(GrpcAnswer(0, HEAD, (frame_message(message),), status_fields(0, "")), status)


def mark_http(answer: HttpAnswer, status: CacheStatus) -> HttpAnswer:
    """Return the HTTP response with the cache's status as the last field of its head."""
    return HttpAnswer(answer.status, b"%btidegate-cache: %b\r\n\r\n" % (answer.head[:-2], status.value.encode()), answer.body)


def mark_grpc(answer: GrpcAnswer, status: CacheStatus) -> GrpcAnswer:
    """Return the gRPC response with the cache's status as its last trailer."""
    return with_trailer(answer, HEADER, status.value)
