"""What is remembered of a fleet's models as text: `fleet/domain/memory` in JSON, as files and Redis keep it.

Fields that are not known here a newer tidegate has written; they are left out.
"""

from __future__ import annotations

from dataclasses import fields
from math import inf
from typing import TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from control_plane.core.errors import InvalidRequest
from control_plane.core.model import MODEL_NAME
from control_plane.fleet.domain.memory import Measured, Wish

RecordT = TypeVar("RecordT", Measured, Wish)

_MOST = 2**63
"""Below it `encode` can write what has grown since, too."""

_READERS: dict[type, TypeAdapter[object]] = {each: TypeAdapter(each) for each in (Measured, Wish)}


def encode(record: Measured | Wish) -> bytes:
    """JSON that `decode` reads."""
    return orjson.dumps(record)


def decode(kind: type[RecordT], model: str, text: bytes | str) -> RecordT:
    """Raises InvalidRequest: it is none, or not of a model."""
    try:
        found = _READERS[kind].validate_json(text, strict=True)
    except ValidationError as exc:
        raise InvalidRequest(f"what is remembered of model {model[:80]!r} cannot be read: {exc.errors()[0]['msg']}") from exc
    assert isinstance(found, kind)
    numbers = [value for each in fields(found) if isinstance(value := getattr(found, each.name), int | float)]
    if not MODEL_NAME.fullmatch(model) or not all(map(_can_be, numbers)):
        raise InvalidRequest(f"what is remembered of model {model[:80]!r} cannot be so")
    return found


def _can_be(number: float) -> bool:
    return 0 <= number < (_MOST if isinstance(number, int) else inf)  # NaN is neither
