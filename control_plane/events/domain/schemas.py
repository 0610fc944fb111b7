"""Schema of each type of event, in JSON Schema (2020-12): written into the reference, and checked by tests.

Within a version of a type fields are only added. Of a gateway's own events only the kinds are fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control_plane.events.domain.cloud_event import AUDIT, JOB, LOST, PREFIX, REQUEST, USAGE, VERSION
from control_plane.events.domain.stream import Stream

_Field = tuple[str | list[str], str]


@dataclass(frozen=True, slots=True)
class EventType:
    """Type of events, with its fields."""

    name: str
    stream: Stream | None
    """None: it is on tenants' own streams only."""
    meaning: str
    fields: Mapping[str, _Field]
    """Name of a field of `data` -> its JSON type or types, and its meaning; each is always there, unless the type `is_open`."""
    is_open: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of `data`."""
        properties = {name: {"type": kind, "description": meaning} for name, (kind, meaning) in self.fields.items()}
        return {"type": "object", "properties": properties, "required": [] if self.is_open else list(self.fields)}


_TENANT: _Field = ("string", "Tenant; empty for callers without one.")
_MODEL: _Field = ("string", "Model; `(unknown)` for names that no model has.")

EVENT_TYPES = (
    EventType(
        f"{PREFIX}{USAGE}{VERSION}",
        Stream.USAGE,
        "What a tenant has used of a model since the last such event of the process that counts it, some half a second. Summed "
        "over all events they are what `tidegate usage` shows. Prices are not in it: they may change, also for the past.",
        {
            "day": ("string", "Day (UTC) that it counts for, as ISO 8601."),
            "tenant": _TENANT,
            "model": _MODEL,
            "requests": ("integer", "Requests answered with success."),
            "failed": ("integer", "Requests that failed in the model or server, or that the caller abandoned."),
            "refused": ("integer", "Requests not sent to a model: invalid, not allowed, or beyond a limit."),
            "rows": ("integer", "Rows of all requests."),
            "elements": ("integer", "Numbers and strings in their inputs."),
            "compute_units": ("number", "Compute units, each a millisecond of one instance."),
            "cache_hits": ("integer", "Requests that the response cache answered."),
            "input_tokens": ("integer", "Tokens that generative models read, of those that count them."),
            "output_tokens": ("integer", "Tokens that they generated, also for callers who left before the end."),
        },
    ),
    EventType(
        f"{PREFIX}{AUDIT}{VERSION}",
        Stream.AUDIT,
        "An entry of the audit log. Secrets are never in it.",
        {
            "number": ("integer", "Number of the entry."),
            "hash": ("string", "SHA-256 over this entry and the hash of the one before it."),
            "who": ("string", "`TENANT/KEY_ID`, `anonymous`, or the part of the gateway that did it."),
            "reason": ("string", "Reason that was given."),
            "action": ("string", "Such as `create`, `replace`, `delete`, `load`; `failed` for an earlier one that was not done."),
            "kind": ("string", "Kind of the object, such as `key`, `tenant`, `route`, `price`, `model`."),
            "name": ("string", "Its name."),
            "before": (["object", "null"], "The object before."),
            "after": (["object", "null"], "The object after."),
            "of": ("integer", "For `failed`, the number of the entry whose change was not made; else 0."),
        },
    ),
    EventType(
        f"{PREFIX}{REQUEST}{VERSION}",
        Stream.REQUESTS,
        "A request that has ended, as a line of the request log has it. Nothing of its inputs and outputs is in it.",
        {
            "tenant": _TENANT,
            "key": ("string", "Id of the API key; never its secret."),
            "route": ("string", "Model or route that the caller named."),
            "model": _MODEL,
            "frontend": ("string", "`http`, `grpc` or `grpc_stream`."),
            "outcome": ("string", "`answered`, `refused`, `failed`, ..., as in the metric `tidegate_requests_total`."),
            "duration_ms": ("number", "Milliseconds from the complete request to its end."),
            "rows": ("integer", "Batch size."),
            "elements": ("integer", "Numbers and strings in its inputs."),
            "compute_units": (["number", "null"], "Compute units that it is expected to have taken; null where that is not known yet."),
            "cache_hit": ("boolean", "Whether the response cache answered it."),
            "server": ("string", "Server that it was sent to; empty for none."),
            "status": (["integer", "null"], "HTTP status or gRPC code; null if the caller had left."),
            "error": ("string", "Text of the error, 300 characters at most."),
            "request_id": ("string", "Id that the caller gave it, 128 characters at most: a text of the caller's choice."),
        },
    ),
    EventType(
        f"{PREFIX}KIND{VERSION}",
        Stream.GATEWAY,
        "What has happened: `KIND` is `fleet.` and `loaded`, `evicted`, `unloaded`, `failed`, `lost`, `down`, `up`, `ejected`, "
        "`readmitted`, `silent` or `answering`; `rollout.` and the rollout's phase; or, with one Triton, `triton.` and `down`, `up`, "
        "`silent` or `answering`, and `model.` and `loaded`, `unloaded`, `failed` or `lost`. Further kinds may come.",
        {
            "model": ("string", "Model, if it is about one."),
            "server": ("string", "Server, if it is about one."),
            "route": ("string", "Route of a rollout."),
            "reason": ("string", "Why."),
        },
        is_open=True,
    ),
)

TENANT_TYPES = (
    EventType(
        f"{PREFIX}{JOB}{VERSION}",
        None,
        "A job of the tenant that has ended, as `GET /v2/jobs/ID` shows it. Chunks of batches are none.",
        {
            "id": ("string", "Id of the job."),
            "state": ("string", "`succeeded`, `failed`, `cancelled`, `expired` or `dead`."),
            "model": _MODEL,
            "class": ("string", "Its price class."),
            "attempts": ("integer", "Times that it was begun."),
            "submitted_at": ("string", "When it was handed in, as ISO 8601."),
            "started_at": (["string", "null"], "When its last attempt began; null if none did."),
            "ended_at": ("string", "When it ended."),
            "status": ("integer", "HTTP status of its result, where it has one."),
            "error": ("string", "Why it has none, where that is known."),
        },
        is_open=True,
    ),
    EventType(
        f"{PREFIX}{LOST}{VERSION}",
        None,
        "Events of the tenant that are missing before the next one: too many came at once.",
        {"count": ("integer", "How many.")},
    ),
)
"""Types that are on tenants' own streams only. Beside them those have `usage.recorded`, and `request.ended` without its `server`."""
