"""Usage as text: batches as stores pass them on and as they are spilled to disk, and the lines of the request log."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime

import orjson
from pydantic import TypeAdapter, ValidationError

from control_plane.core.errors import InvalidRequest
from control_plane.metering.domain.usage import UsageBatch, UsageEvent

_BATCH: TypeAdapter[UsageBatch] = TypeAdapter(UsageBatch)


def encode_batch(batch: UsageBatch) -> bytes:
    """JSON that `decode_batch` reads."""
    return _dumps(batch)


def decode_batch(text: bytes) -> UsageBatch:
    """Raises InvalidRequest."""
    try:
        return _BATCH.validate_python(json.loads(text))
    except (ValidationError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"no batch of usage: {exc}") from exc


def encode_log_line(event: UsageEvent) -> bytes:
    """One JSON object and a line feed. What names the caller is the key's id, never its secret."""
    ended = datetime.fromtimestamp(event.ended_s, UTC)
    line = {
        "time": ended.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "tenant": event.tenant,
        "key": event.key_id,
        "route": event.route,
        "model": event.model,
        "door": event.door,
        "outcome": event.outcome,
        "duration_ms": round(event.duration_s * 1000, 3),
        "rows": event.rows,
        "elements": event.elements,
        "compute_units": None if event.compute_units is None else round(event.compute_units, 3),
        "cache_hit": event.cache_hit,
        "server": event.server,
        "status": event.status,
        "error": event.error,
        "request_id": event.request_id,
    }
    return _dumps(line) + b"\n"


def _dumps(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # half of a surrogate pair, which a token's claims may hold, or an integer beyond 64 bits
        return json.dumps(value, default=_fields).encode()


def _fields(value: object) -> dict[str, object]:
    assert is_dataclass(value)
    assert not isinstance(value, type)
    return asdict(value)
