"""JSON encoding of usage batches (for Redis and the spill folder) and of the request log's lines; pure."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from control_plane.core.errors import InvalidRequest
from control_plane.metering.domain.usage import Usage, UsageBatch, UsageEvent, UsageKey, UsageRecord, fields_of

_BATCH: TypeAdapter[UsageBatch] = TypeAdapter(UsageBatch)


def encode_batch(batch: UsageBatch) -> bytes:
    """Encode a batch as JSON for `decode_batch`."""
    return _dumps(batch)


def decode_batch(text: bytes) -> UsageBatch:
    """Decode a batch. Raises InvalidRequest if it is none."""
    try:
        return _BATCH.validate_python(json.loads(text))
    except (ValidationError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"not a batch of usage: {exc}") from exc


def encode_records(batch: UsageBatch, *, at_s: float) -> list[bytes]:
    """Encode the sums of a batch one by one for `decode_record`; a store numbers them."""
    return [_dumps([f"{batch.id}/{place}", at_s, *fields_of(key, usage)]) for place, (key, usage) in enumerate(batch.sums)]


def decode_record(number: int, text: str | bytes) -> UsageRecord:
    """Decode a record that `encode_records` has encoded."""
    id_, at_s, day, tenant, model, *sums = json.loads(text)
    return UsageRecord(number, id_, at_s, UsageKey(day, tenant, model), Usage(*sums))


def encode_log_line(event: UsageEvent) -> bytes:
    """Encode an event as one JSON object and a line feed. It has the key's id, never its secret."""
    ended = datetime.fromtimestamp(event.ended_s, UTC)
    return _dumps({"time": ended.isoformat(timespec="milliseconds").replace("+00:00", "Z")} | request_fields(event)) + b"\n"


def request_fields(event: UsageEvent) -> dict[str, Any]:
    """Return what is told of a request that has ended, in the request log and to subscribers; nothing of what was in it."""
    return {
        "tenant": event.tenant,
        "key": event.key_id,
        "route": event.route,
        "model": event.model,
        "frontend": event.frontend,
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


def _dumps(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # a lone surrogate, which a token's claims may contain, or an integer beyond 64 bits
        return json.dumps(value, default=_fields).encode()


def _fields(value: object) -> dict[str, object]:
    assert is_dataclass(value)
    assert not isinstance(value, type)
    return asdict(value)
