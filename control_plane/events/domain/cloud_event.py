"""Values of the gateway's books as CloudEvents 1.0 in JSON (structured mode).

The attribute `sequence` is the extension of that name: numbers without gaps, padded so that they sort as text. A
receiver that has seen an event's `id` may forget the event: it was sent again. `schemas` describes each type's `data`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import orjson

from control_plane.audit.domain.entry import Entry
from control_plane.metering.domain.usage import UsageEvent, UsageRecord
from control_plane.metering.domain.usage_text import request_fields

SPECVERSION = "1.0"
PREFIX, VERSION = "io.tidegate.", ".v1"
USAGE, AUDIT, REQUEST = "usage.recorded", "audit.written", "request.ended"
JOB, LOST = "job.ended", "events.lost"
"""Types of event that only the streams of tenants have (`GET /v2/events`): a job has ended, and events were lost."""
_SEQUENCE_DIGITS = 16


def source_of_store(name: str) -> str:
    """Return the source of what is in one store; `sequence` counts within it."""
    return f"/tidegate/stores/{name}"


def source_of_gateway(host: str) -> str:
    """Return the source of what one gateway tells of itself."""
    return f"/tidegate/gateways/{host}"


def usage_event(record: UsageRecord, *, source: str) -> bytes:
    """Encode a usage record: what a tenant has used of a model within some half a second."""
    return _encoded(USAGE, record.id, source, record.at_s, usage_fields(record), subject=record.key.tenant, sequence=record.number)


def usage_fields(record: UsageRecord) -> dict[str, Any]:
    """Return what is told of a usage record."""
    usage = record.usage
    return {
        "day": record.key.day,
        "tenant": record.key.tenant,
        "model": record.key.model,
        "requests": usage.requests,
        "failed": usage.failed,
        "refused": usage.refused,
        "rows": usage.rows,
        "elements": usage.elements,
        "compute_units": usage.compute_units,
        "cache_hits": usage.cache_hits,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
    }


def audit_event(entry: Entry, *, source: str) -> bytes:
    """Encode an entry of the audit log, which has no secrets; its hash is its id."""
    change = entry.change
    data = {
        "number": entry.number,
        "hash": entry.hash,
        "who": change.who,
        "reason": change.reason,
        "action": change.action,
        "kind": change.kind,
        "name": change.name,
        "before": change.before,
        "after": change.after,
        "of": change.of,
    }
    subject = f"{change.kind}/{change.name}"
    return _encoded(AUDIT, entry.hash, source, entry.at_s, data, subject=subject, sequence=entry.number)


def request_event(event: UsageEvent, *, id: str, source: str) -> bytes:  # noqa: A002
    """Encode a request that has ended: what the request log says of it, and never what was in it."""
    return _encoded(REQUEST, id, source, event.ended_s, request_fields(event), subject=event.model)


def gateway_event(kind: str, fields: Mapping[str, Any], *, id: str, source: str, at_s: float) -> bytes:  # noqa: A002
    """Encode what has happened on a gateway: its kind is such as `fleet.loaded`, `rollout.canary` and `model.failed`."""
    subject = str(fields.get("model") or fields.get("route") or fields.get("server") or "")
    return _encoded(kind, id, source, at_s, dict(fields), subject=subject)


def tenant_event(kind: str, data: bytes, *, id: str, tenant: str, at_s: float) -> bytes:  # noqa: A002
    """Encode an event of a tenant's own stream; `data` is a JSON object in ASCII. Neither its source nor its id tells of others."""
    head = _encoded(kind, id, f"/tidegate/tenants/{quote(tenant, safe='', errors='replace')}", at_s, {})
    return b"%b%b}" % (head[: -len(_NO_DATA)], data)


_NO_DATA = b"{}}"


def _encoded(
    kind: str,
    id: str,  # noqa: A002
    source: str,
    at_s: float,
    data: Mapping[str, Any],
    *,
    subject: str = "",
    sequence: int | None = None,
) -> bytes:
    event: dict[str, Any] = {
        "specversion": SPECVERSION,
        "id": id,
        "source": source,
        "type": f"{PREFIX}{kind}{VERSION}",
        "time": datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "datacontenttype": "application/json",
    }
    if subject:  # an empty one is not allowed
        event["subject"] = subject
    if sequence is not None:
        event["sequence"] = f"{sequence:0{_SEQUENCE_DIGITS}}"
    event["data"] = data
    try:
        encoded = orjson.dumps(event, default=str)
    except TypeError:  # a lone surrogate, which a token's claims may contain, or an integer beyond 64 bits
        encoded = b"\xff"
    # ASCII: some readers of lines also end them at U+2028 or U+0085, which a caller's text may have.
    return encoded if encoded.isascii() else json.dumps(event, default=str).encode()
