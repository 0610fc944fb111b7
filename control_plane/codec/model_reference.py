"""Which model a gRPC message is about, read and changed without parsing the rest of it.

In ModelInferRequest and in every request about one model the name is field 1 and the version field 2
(`grpc_service.proto`). Of a field that occurs twice the last one counts, so what is appended wins.
"""

from __future__ import annotations

from control_plane.codec.protobuf_fields import fields, varint
from control_plane.domain.errors import InvalidRequest

_NAME = 1 << 3 | 2
_VERSION = 2 << 3 | 2


def model_in(message: bytes | memoryview) -> tuple[str, str]:
    """Name and version, each empty where it is not given. Raises InvalidRequest."""
    found = {tag: payload for tag, _, payload in fields(memoryview(message)) if tag in (_NAME, _VERSION)}
    try:
        name, version = (bytes(found.get(tag, b"")).decode() for tag in (_NAME, _VERSION))
    except UnicodeDecodeError as exc:
        raise InvalidRequest("the model's name is not UTF-8") from exc
    return name, version


def aimed_at(message: bytes | memoryview, name: str, version: str) -> bytes:
    """The same message about another model; an empty version leaves the choice to the model's policy."""
    return b"".join((message, _field(_NAME, name), _field(_VERSION, version)))


def _field(tag: int, text: str) -> bytes:
    encoded = text.encode()
    return b"".join((varint(tag), varint(len(encoded)), encoded))
