"""The reference's page of events: the attributes of each, and the schema of each type's data."""

from __future__ import annotations

from collections.abc import Iterator

from control_plane.events.domain.schemas import EVENT_TYPES, TENANT_TYPES
from control_plane.events.domain.stream import MEANINGS, Stream
from docs.generator.markdown import table, wrapped

_ATTRIBUTES = (
    ("specversion", "`1.0`"),
    ("id", "of usage the batch and the sum's place in it, of audit the entry's hash; an event that is sent again has the same"),
    ("source", "`/tidegate/stores/NAME`, `/tidegate/gateways/HOST` or, of tenants' own, `/tidegate/tenants/NAME`"),
    ("type", "below; within a version (`.v1`) fields are only added"),
    ("time", "RFC 3339, in UTC"),
    ("subject", "tenant, object, or model; missing where there is none"),
    ("sequence", "of usage and audit: number within the source, without gaps, padded so that it sorts as text"),
    ("datacontenttype", "`application/json`"),
    ("data", "an object, below"),
)


def blocks() -> Iterator[str]:
    yield "# Events"
    yield wrapped(
        "CloudEvents 1.0 in JSON (structured mode), the same on Redis Streams and over the admin API; [how to subscribe]"
        "(../operations/events.md), and [how a tenant follows its own](../how-to/tenants.md#a-tenants-own-events). All "
        "characters are ASCII, others are escaped."
    )
    yield table(("attribute", "what it is"), _ATTRIBUTES)
    yield "## Streams"
    yield table(("stream", "what is on it"), [(f"`{stream}`", MEANINGS[stream]) for stream in Stream])
    for each in (*EVENT_TYPES, *TENANT_TYPES):
        yield f"## {each.name}"
        where = "On tenants' own streams only" if each.stream is None else f"On the stream `{each.stream}`"
        yield wrapped(f"{where}. {each.meaning}")
        if each.is_open:
            yield "Each of these fields is there where it says something, and others by the kind:"
        rows = [(f"`{name}`", kind if isinstance(kind, str) else " or ".join(kind), what) for name, (kind, what) in each.fields.items()]
        yield table(("field of data", "type", "meaning"), rows)
