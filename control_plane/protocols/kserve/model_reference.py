"""Which model a gRPC message is about: read, checked and changed without parsing the rest of it.

Where a message has its model's name and version is of its type (`grpc_service.proto`). Of a field that occurs twice the last one
counts, so what is appended wins.
"""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.core.errors import InvalidRequest
from control_plane.core.model import check_reference
from control_plane.protocols.protobuf_fields import fields, varint

_NAME = 1 << 3 | 2
_VERSION = 2 << 3 | 2
_MAX_FIELDS = 4096
"""Of a message that is looked through at once, which takes a microsecond for each; a load brings one for each file."""


@dataclass(frozen=True, slots=True)
class ReferenceFields:
    """The tags of a message's fields that name a model and its version."""

    name: int = _NAME
    version: int | None = _VERSION


OF_A_MODEL = ReferenceFields()
"""In ModelInferRequest and all that ask about one model."""
OF_AN_ADMINISTERED_MODEL = ReferenceFields(name=2 << 3 | 2, version=None)
"""In requests that load and unload, and that change how a model is traced: field 2, `model_name`."""


def model_in(message: bytes | memoryview, where: ReferenceFields = OF_A_MODEL) -> tuple[str, str]:
    """Name and version, each empty where it is not given. Raises InvalidRequest: it cannot be read, or no model can be called that."""
    tags = (where.name, where.version)
    found: dict[int, memoryview] = {}
    for number, (tag, _, payload) in enumerate(fields(memoryview(message))):
        if number == _MAX_FIELDS:
            raise InvalidRequest(f"the message has more than {_MAX_FIELDS} fields")
        if tag in tags:
            found[tag] = payload
    try:
        name, version = (bytes(found.get(tag, b"")).decode() if tag else "" for tag in tags)
    except UnicodeDecodeError as exc:
        raise InvalidRequest("the model's name is not UTF-8") from exc
    check_reference(name, version)
    return name, version


def aimed_at(message: bytes | memoryview, name: str, version: str) -> bytes:
    """The same message about another model; an empty version leaves the choice to the model's policy."""
    return b"".join((message, _field(_NAME, name), _field(_VERSION, version)))


def _field(tag: int, text: str) -> bytes:
    encoded = text.encode()
    return b"".join((varint(tag), varint(len(encoded)), encoded))
