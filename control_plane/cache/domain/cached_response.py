"""Requests as the keys of a cache, and answers in a form that any caller can be given: without the id, which is the caller's.

What is not understood beyond doubt keeps its id in the key, so that at worst an answer is found less often. Triton's bytes
are kept as they came; only the field `id`, and over HTTP the lengths in the head, are made anew.

Source: KServe v2 inference protocol (JSON, `grpc_service.proto`) and Triton's binary tensor data extension.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import Generic, Protocol, TypeVar

import orjson

from control_plane.core.errors import ControlPlaneError, InvalidRequest
from control_plane.core.infer_call import CacheStatus, InferCall
from control_plane.protocols.content_encoding import decoded_pieces
from control_plane.protocols.grpc import HEAD, GrpcAnswer, frame_message, status_fields
from control_plane.protocols.http1 import HttpAnswer
from control_plane.protocols.kserve.body_limits import InflateBound
from control_plane.protocols.protobuf_fields import fields, varint

AnswerT = TypeVar("AnswerT")
AnswerOfT = TypeVar("AnswerOfT", covariant=True)

HEADER = "tidegate-cache"
"""Of answers, over HTTP; over gRPC a trailer of that name."""

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_ID = re.compile(rb'"id"\s*:\s*(' + _STRING + rb")", re.DOTALL)
_ANSWERS_ID = re.compile(rb'\{"id":' + _STRING + rb",", re.DOTALL)
_LENGTHS = re.compile(rb"\r\n(?:content-length|inference-header-content-length):[^\r\n]*", re.IGNORECASE)
_JSON_LENGTH = re.compile(rb"\r\ninference-header-content-length:[ \t]*(\d{1,18})", re.IGNORECASE)
_ENCODING = re.compile(rb"\r\ncontent-encoding:[^\r\n]*", re.IGNORECASE)
_MAX_BYTES = 2**22
_DECODED = InflateBound(2**21, "the answer is too large to be kept")
"""Of an answer that is looked into, and of one that has to be decoded for that: more would hold up everybody for too long."""
_LAYOUT = Struct("<IIB")
"""Of a kept HTTP answer: bytes of its head, bytes of its JSON, and whether binary data may follow that."""

_COMPUTE = frozenset(("no-cache", "no-store", "max-age=0"))

_OWN_FIELDS = frozenset((1 << 3 | 2, 2 << 3 | 2, 3 << 3 | 2))
"""Tags of a ModelInferRequest's model_name, model_version and id: the model is in the key already, as it is meant."""
_MAX_FIELDS = 4096
"""Of a message of which a key is made: walking so many takes some milliseconds, in which nobody else is served."""
_ANSWERS_ID_TAG = 3 << 3 | 2
"""Of a ModelInferResponse."""


@dataclass(slots=True)
class RepeatedRequest(Generic[AnswerT]):
    """What was made of a request's bytes, which equal bytes are as well; and what they were answered last, as long as that is kept."""

    call: InferCall
    """As its sender named the model."""
    kind: bytes
    """Of the door."""
    identity: bytes
    """For a key: a digest of all that its answer depends on but model and version."""
    restore: Restore[AnswerT]
    scope: object = None
    """Whose key `key` is, for the model's version `version`."""
    version: str = ""
    key: bytes = b""
    _kept: bytes | None = None
    _answer: AnswerT | None = None

    def answer(self, kept: bytes) -> AnswerT:
        """A hit; of what was kept before it is there already."""
        if self._answer is None or self._kept is not kept:
            self._kept, self._answer = kept, self.restore(kept, CacheStatus.HIT, request_id=self.call.request_id)
        return self._answer


class Restore(Protocol[AnswerOfT]):
    """`restore_http` or `restore_grpc`."""

    def __call__(self, kept: bytes, status: CacheStatus, *, request_id: str) -> AnswerOfT: ...


def identity_of(*parts: bytes | bytearray) -> bytes:
    """Of a request that is so many parts, in this order, and nothing else."""
    return sha256(b"".join((b"".join([b"%d:" % len(part) for part in parts]), *parts))).digest()


def forbids_kept_answer(cache_control: str | None) -> bool:
    """Whether a caller wants it computed (RFC 9111, 5.2.1); all fields of that name as one text."""
    return cache_control is not None and not _COMPUTE.isdisjoint(word.strip().lower() for word in cache_control.split(","))


def json_without_id(text: bytes, request_id: str) -> bytes:
    """A request's JSON with an empty id, where there is no doubt which one that is; else as it is."""
    if not request_id or b"\\u" in text or text.count(b'"id"') != 1:  # there may be an input, or a parameter, of that name
        return text
    match = _ID.search(text)
    return text if match is None else b"%b%b%b" % (text[: match.start(1)], b'""', text[match.end(1) :])


def message_without_id(message: bytes | memoryview) -> bytes | None:
    """A ModelInferRequest without its id and the model's name and version; None of one with very many fields. Raises InvalidRequest."""
    kept: list[memoryview] = []
    for number, (tag, field, _) in enumerate(fields(memoryview(message))):
        if number == _MAX_FIELDS:
            return None
        if tag not in _OWN_FIELDS:
            kept.append(field)
    return b"".join(kept)


def keep_http(answer: HttpAnswer, *, request_id: str) -> bytes | None:
    """A successful answer to a request of that id, for `restore_http`; None if there is any doubt about where its id is."""
    body = _decoded(answer) if answer.status == 200 and len(answer.body) <= _MAX_BYTES else None
    if body is None:
        return None
    length = _JSON_LENGTH.search(answer.head)
    json = body if length is None else body[: int(length.group(1))]
    data = body[len(json) :]
    found = _ANSWERS_ID.match(json)
    if (found is None) is not (not request_id) or not json.startswith(b"{") or len(json) < 3:
        return None
    bare = json if found is None else b"{" + json[found.end() :]
    head = _ENCODING.sub(b"", _LENGTHS.sub(b"", answer.head))[:-4]
    return b"".join((_LAYOUT.pack(len(head), len(bare), length is not None), head, bare, data))


def _decoded(answer: HttpAnswer) -> bytes | None:
    """Its body as somebody is sent it who names no encoding: that suits everybody."""
    if _ENCODING.search(answer.head) is None:
        return bytes(answer.body)
    try:
        return b"".join(decoded_pieces(answer.body, _DECODED))
    except ControlPlaneError:
        return None


def restore_http(kept: bytes, status: CacheStatus, *, request_id: str) -> HttpAnswer:
    """The answer as Triton would have given it to a request of that id, and what the cache did."""
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


def keep_grpc(answer: GrpcAnswer) -> bytes | None:
    """A successful answer's message without its id, for `restore_grpc`; None of what is compressed or cannot be read."""
    if answer.code != 0 or sum(map(len, answer.body)) > _MAX_BYTES:
        return None
    frame = b"".join(answer.body)
    if not frame or frame[0] != 0:
        return None
    try:
        return b"".join(field for tag, field, _ in fields(memoryview(answer.message)) if tag != _ANSWERS_ID_TAG)
    except InvalidRequest:
        return None


def restore_grpc(kept: bytes, status: CacheStatus, *, request_id: str) -> GrpcAnswer:
    """The same for a request of that id."""
    message = kept
    if request_id:
        encoded = request_id.encode()
        message = b"".join((kept, varint(_ANSWERS_ID_TAG), varint(len(encoded)), encoded))
    return mark_grpc(GrpcAnswer(0, HEAD, (frame_message(message),), status_fields(0, "")), status)


def mark_http(answer: HttpAnswer, status: CacheStatus) -> HttpAnswer:
    """The answer with what the cache did."""
    return HttpAnswer(answer.status, b"%btidegate-cache: %b\r\n\r\n" % (answer.head[:-2], status.value.encode()), answer.body)


def mark_grpc(answer: GrpcAnswer, status: CacheStatus) -> GrpcAnswer:
    """The same over gRPC."""
    trailer = (HEADER.encode(), status.value.encode())
    return GrpcAnswer(answer.code, answer.headers, answer.body, (*answer.trailers, trailer))
