"""Filters Triton's statistics of all models to those that a caller may read; entries that stay are unchanged.

Source: Triton's extension_statistics.md, and ModelStatisticsResponse in `grpc_service.proto` (server 24.10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

import orjson

from control_plane.core.errors import InvalidRequest, UpstreamFailed
from control_plane.protocols.protobuf_fields import fields

Readable = Callable[[Iterable[str]], Set[str]]
"""Returns those of the given models that the caller may read."""

_MODEL_STATS = _NAME = 1 << 3 | 2
"""Tag of `model_stats` in the answer and of `name` in each of its entries: both are field 1."""


def visible_json(body: bytes | bytearray, readable: Readable) -> bytes | None:
    """The filtered body of an answer over HTTP; None if nothing had to be removed. Raises UpstreamFailed."""
    try:
        found = orjson.loads(body)["model_stats"]
        names = [each["name"] for each in found]
    except (orjson.JSONDecodeError, KeyError, TypeError) as exc:
        # Refused rather than passed on: unreadable statistics may contain those of models that the caller
        # must not see.
        raise UpstreamFailed("Triton's statistics cannot be read, so nobody knows whose they are") from exc
    seen = readable(names)
    kept = [each for each, name in zip(found, names, strict=True) if name in seen]
    return None if len(kept) == len(found) else orjson.dumps({"model_stats": kept})


def visible_message(message: bytes | memoryview, readable: Readable) -> bytes | None:
    """The filtered ModelStatisticsResponse; None if nothing had to be removed. Raises UpstreamFailed."""
    try:
        parts = [(field, _name_in(payload) if tag == _MODEL_STATS else None) for tag, field, payload in fields(memoryview(message))]
    except (InvalidRequest, UnicodeDecodeError) as exc:
        raise UpstreamFailed("Triton's statistics cannot be read, so nobody knows whose they are") from exc
    seen = readable(name for _, name in parts if name is not None)
    kept = [field for field, name in parts if name is None or name in seen]
    return None if len(kept) == len(parts) else b"".join(kept)


def _name_in(statistics: memoryview) -> str:
    return next((bytes(payload).decode() for tag, _, payload in fields(statistics) if tag == _NAME), "")
