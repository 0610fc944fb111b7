"""JSON codec of the records in `fleet/domain/memory`, as the file and Redis keep them.

Unknown fields are ignored: a newer tidegate has written them.
"""

from __future__ import annotations

from dataclasses import fields
from math import inf
from typing import TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from control_plane.core.errors import InvalidRequest
from control_plane.core.model import MODEL_NAME
from control_plane.fleet.domain.memory import DesiredState, Measured

RecordT = TypeVar("RecordT", Measured, DesiredState)

_MAX_INTEGER = 2**63
"""Upper bound of integers: orjson writes 64 bits, and a number may have grown since it was read."""

_READERS: dict[type, TypeAdapter[object]] = {each: TypeAdapter(each) for each in (Measured, DesiredState)}


def encode(record: Measured | DesiredState) -> bytes:
    """Return the record as JSON, which `decode` reads."""
    return orjson.dumps(record)


def decode(kind: type[RecordT], model: str, text: bytes | str) -> RecordT:
    """Parse a record. Raises InvalidRequest: the text is no such record, a number is impossible, or the name
    is not a model's."""
    try:
        found = _READERS[kind].validate_json(text, strict=True)
    except ValidationError as exc:
        raise InvalidRequest(f"the record of model {model[:80]!r} cannot be read: {exc.errors()[0]['msg']}") from exc
    assert isinstance(found, kind)
    numbers = [value for each in fields(found) if isinstance(value := getattr(found, each.name), int | float)]
    if not MODEL_NAME.fullmatch(model) or not all(map(_can_be, numbers)):
        raise InvalidRequest(f"the record of model {model[:80]!r} has an impossible number or name")
    return found


def _can_be(number: float) -> bool:
    return 0 <= number < (_MAX_INTEGER if isinstance(number, int) else inf)  # NaN is neither
