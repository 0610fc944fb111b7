"""Reads, checks and replaces the model reference in a serialised gRPC message, without parsing the rest of
it.

Which fields hold the model's name and version depends on the message's type (`grpc_service.proto`). In
protobuf the last of several equal fields counts, so an appended field replaces the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.core.errors import InvalidRequest
from control_plane.core.model import check_reference
from control_plane.protocols.protobuf_fields import fields, varint

_NAME = 1 << 3 | 2
_VERSION = 2 << 3 | 2
_MAX_FIELDS = 4096
"""Most fields of a message, as all are walked in one step at a microsecond each; a load has one field for
each file."""


@dataclass(frozen=True, slots=True)
class ReferenceFields:
    """The tags of a message's fields that name a model and its version."""

    name: int = _NAME
    version: int | None = _VERSION


MODEL_FIELDS = ReferenceFields()
"""The fields in ModelInferRequest and in requests that ask about one model."""
ADMINISTERED_MODEL_FIELDS = ReferenceFields(name=2 << 3 | 2, version=None)
"""The fields in requests that load, unload or change the tracing of a model: field 2, `model_name`."""


def model_in(message: bytes | memoryview, where: ReferenceFields = MODEL_FIELDS) -> tuple[str, str]:
    """The model's name and version, each empty where it is absent.

    Raises InvalidRequest: the message cannot be read, or no model can have that name or version.
    """
    tags = (where.name, where.version)
    found: dict[int, memoryview] = {}
    for number, (tag, _, payload) in enumerate(fields(memoryview(message))):
        if number == _MAX_FIELDS:
            raise InvalidRequest(f"the message has more than {_MAX_FIELDS} fields")
        if tag in tags:
            # Of a field that occurs twice the last one counts, as in every protobuf parser.
            found[tag] = payload
    try:
        name, version = (bytes(found.get(tag, b"")).decode() if tag else "" for tag in tags)
    except UnicodeDecodeError as exc:
        raise InvalidRequest("the model's name is not UTF-8") from exc
    check_reference(name, version)
    return name, version


def with_model(message: bytes | memoryview, name: str, version: str) -> bytes:
    """Return the message for another model; an empty version leaves the choice to the model's version
    policy."""
    # Appended: the last of two counts, so what is there need not be found and taken out.
    return b"".join((message, _field(_NAME, name), _field(_VERSION, version)))


def _field(tag: int, text: str) -> bytes:
    encoded = text.encode()
    return b"".join((varint(tag), varint(len(encoded)), encoded))
