from __future__ import annotations

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from control_plane.audit.domain.entry import Actor, change_of, sealed
from control_plane.core.infer_call import Frontend, Outcome
from control_plane.events.domain.cloud_event import audit_event, gateway_event, request_event, tenant_event, usage_event
from control_plane.events.domain.schemas import EVENT_TYPES, TENANT_TYPES
from control_plane.metering.domain.usage import Usage, UsageEvent, UsageKey, UsageRecord

RECORD = UsageRecord(7, "batch/0", 1_700_000_000.25, UsageKey("2023-11-14", "acme", "m"), Usage(requests=2, compute_units=1e-7))
REQUEST = UsageEvent(1_700_000_000.0, "acme", "k1", "r", "m", Frontend.HTTP, Outcome.ANSWERED, 0.0123456, 1, 4, None, status=200)
CHANGE = change_of(Actor("acme/k1", "why"), "replace", "tenant", "acme", before={"burst": 1}, after={"burst": 2, "secret": "s3cr3t"})
ENTRY = sealed(None, CHANGE, at_s=1_700_000_000.0)
# CloudEvents 1.0: REQUIRED attributes, and names of attributes (3.1).
REQUIRED = {"specversion", "id", "source", "type"}


def decoded(text: bytes) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(text)
    assert event.keys() >= REQUIRED
    assert all(name.isalnum() and name == name.lower() for name in event)
    assert all(isinstance(value, str) and value for name, value in event.items() if name != "data")
    return event


EVENTS = [
    pytest.param(usage_event(RECORD, source="/s"), id="usage"),
    pytest.param(audit_event(ENTRY, source="/s"), id="audit"),
    pytest.param(request_event(REQUEST, id="p-1", source="/g"), id="request"),
    pytest.param(gateway_event("fleet.loaded", {"model": "m", "server": "0"}, id="p-1", source="/g", at_s=0.0), id="gateway"),
]


@pytest.mark.parametrize("text", EVENTS)
def test_each_is_a_cloud_event_of_its_schema(text: bytes) -> None:
    event = decoded(text)
    known = {each.name: each for each in EVENT_TYPES}
    jsonschema.validate(event["data"], known.get(event["type"], EVENT_TYPES[-1]).schema)
    if event["type"] in known:
        assert set(event["data"]) == set(known[event["type"]].fields), "a field without a meaning"


def test_an_event_of_usage_is_its_record() -> None:
    event = decoded(usage_event(RECORD, source="/tidegate/stores/s"))
    assert (event["id"], event["type"], event["time"]) == ("batch/0", "io.tidegate.usage.recorded.v1", "2023-11-14T22:13:20.250Z")
    assert (event["subject"], event["sequence"], event["data"]["compute_units"]) == ("acme", "0000000000000007", 1e-7)


@pytest.mark.parametrize("tenant", ["acme", "a/b c", "\ud800"])
def test_a_tenants_own_tells_of_that_tenant_alone(tenant: str) -> None:
    event = decoded(tenant_event("events.lost", b'{"count":3}', id="0123abcd-1", tenant=tenant, at_s=1_700_000_000.0))
    assert (event["id"], event["type"], event["data"]) == ("0123abcd-1", "io.tidegate.events.lost.v1", {"count": 3})
    assert event["source"].startswith("/tidegate/tenants/")
    assert event["source"].count("/") == 3
    assert "sequence" not in event
    known = {each.name: each for each in TENANT_TYPES}
    jsonschema.validate(event["data"], known[event["type"]].schema)


def test_sequences_sort_as_text() -> None:
    texts = [decoded(usage_event(UsageRecord(n, "i", 0.0, RECORD.key, RECORD.usage), source="/s"))["sequence"] for n in (9, 10, 2**40)]
    assert texts == sorted(texts)


def test_an_event_of_audit_has_no_secret_and_its_hash_as_id() -> None:
    text = audit_event(ENTRY, source="/s")
    assert decoded(text)["id"] == ENTRY.hash
    assert b"s3cr3t" not in text


def test_what_callers_write_is_escaped() -> None:
    forged = 'x","tenant":"other\r\ndata: {}\n\n\x00\u2028'
    request = UsageEvent(0.0, "a", "k", "r", "m", Frontend.HTTP, Outcome.REFUSED, 0.0, 0, 0, 0.0, error=forged, request_id=forged)
    text = request_event(request, id="p-1", source="/g")
    assert b"\n" not in text
    assert b"\r" not in text
    assert text.isascii()
    event = decoded(text)
    assert (event["data"]["tenant"], event["data"]["request_id"]) == ("a", forged)


def test_names_that_utf_8_cannot_encode_are_no_error() -> None:
    request = UsageEvent(0.0, "\ud800", "k", "r", "m", Frontend.HTTP, Outcome.REFUSED, 0.0, 0, 2**70, 0.0)
    assert decoded(request_event(request, id="p-1", source="/g"))["data"]["elements"] == 2**70


def test_an_empty_subject_is_none() -> None:
    usage = UsageRecord(1, "i", 0.0, UsageKey("2023-11-14", "", "m"), Usage())
    assert "subject" not in decoded(usage_event(usage, source="/s"))
