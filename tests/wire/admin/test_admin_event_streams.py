"""`/events/{stream}` on a real port: CloudEvents that are resumed by their ids, of logs and of what only passes by."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from control_plane.core.infer_call import Frontend, Outcome
from control_plane.core.scope import Right, Scope
from control_plane.events.request_tap import RequestEncoder
from control_plane.metering.domain.usage import Usage, UsageBatch, UsageEvent, UsageKey
from tests.aio import run
from tests.unit.admin.admin_bench import Bench
from tests.wire.admin.admin_events_bench import events

FORGED = 'x"\r\n\r\ndata: {"forged": true}\r\n\r\n\u2028'


def use(bench: Bench, count: int = 1, tenant: str = "a") -> None:
    begun = len(bench.usage.usage.records)
    for number in range(begun, begun + count):
        run(bench.usage.add(UsageBatch(f"b{number}", ((UsageKey("2026-01-01", tenant, "m"), Usage(requests=1)),))))


def read(client: httpx.Client, stream: str, **how: str) -> list[dict[str, Any]]:
    """All that is kept, or follows an id."""
    headers = {"last-event-id": how["after"]} if how else {}
    return list(events(client.get(f"/events/{stream}?follow=false", headers=headers)))


def test_usage_is_streamed_and_a_broken_stream_goes_on_where_it_was(served: tuple[Bench, httpx.Client, str]) -> None:
    bench, client, _ = served
    use(bench, 3)
    with client.stream("GET", "/events/usage", params={"backlog": "true"}) as response:
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")
        found = events(response)
        first, second = next(found), next(found)
        assert (first["event"], first["data"]["type"], first["data"]["id"]) == ("message", "io.tidegate.usage.recorded.v1", "b0/0")
    assert [each["data"]["id"] for each in read(client, "usage", after=second["id"])] == ["b2/0"]
    with client.stream("GET", "/events/usage") as response:
        found = events(response)
        use(bench)
        assert next(found)["data"]["sequence"] == "0000000000000004"


@pytest.mark.parametrize("after", ["0a0a0a0a-9", "0b0b0b0b-1", "1", "x", "0a0a0a0a-" + "9" * 300])
def test_an_id_that_is_not_known_is_a_gap_and_then_all_that_are_kept(served: tuple[Bench, httpx.Client, str], after: str) -> None:
    bench, client, _ = served
    use(bench, 2)
    found = read(client, "usage", after=after)
    assert [each["event"] for each in found] == ["gap", "message", "message"]


def test_events_that_were_removed_meanwhile_are_a_gap(served: tuple[Bench, httpx.Client, str]) -> None:
    bench, client, _ = served
    use(bench, 5)
    del bench.usage.usage.records[:3]
    found = read(client, "usage", after="0a0a0a0a-1")
    assert [each["event"] for each in found] == ["gap", "message", "message"]
    assert [each["event"] for each in read(client, "usage")] == ["message", "message"], "what came before the first is no gap"


def test_audit_and_the_gateways_own_events(served: tuple[Bench, httpx.Client, str]) -> None:
    bench, client, key = served
    bench.publish("fleet.loaded", model="m", server="0", reason=FORGED)
    (loaded,) = read(client, "gateway")
    assert (loaded["data"]["type"], loaded["data"]["data"]["reason"]) == ("io.tidegate.fleet.loaded.v1", FORGED)
    assert loaded["id"] == loaded["data"]["id"]
    assert client.put("/tenants/acme", json={"requests_per_s": 5}, headers={"x-tidegate-reason": "why"}).is_success
    *_, put = read(client, "audit")
    assert (put["data"]["data"]["reason"], put["data"]["subject"]) == ("why", "tenant/acme")
    assert key.split("_", 2)[2] not in str(read(client, "audit"))


def test_requests_are_watched_while_somebody_reads_them(served: tuple[Bench, httpx.Client, str]) -> None:
    bench, client, _ = served
    told: list[bool] = []
    bench.subscriptions.requests.watched = told.append
    event = UsageEvent(0.0, "a", "k", "r", "m", Frontend.HTTP, Outcome.ANSWERED, 0.1, 1, 4, None, request_id=FORGED, number=7)
    with client.stream("GET", "/events/requests") as response:
        found = events(response)
        assert told == [True]
        assert bench.loop is not None
        bench.loop.call_soon_threadsafe(bench.subscriptions.requests.publish_encoded, "request.ended", [RequestEncoder("/g")(event)])
        seen = next(found)
        assert seen["data"]["data"]["request_id"] == FORGED
        assert seen["data"]["id"].endswith("-7")
    for _ in range(200):
        if told == [True, False]:
            break
        client.get("/health/live")
    assert told == [True, False]


def test_a_store_that_is_away_is_said_and_a_stream_outlasts_it(served: tuple[Bench, httpx.Client, str]) -> None:
    bench, client, _ = served
    with client.stream("GET", "/events/usage") as response:
        found = events(response)
        bench.usage.is_away = True
        assert client.get("/events/usage").status_code == 503
        bench.usage.is_away = False
        use(bench)
        assert next(found)["data"]["data"]["requests"] == 1


def test_who_may_not_see_may_not_subscribe_and_what_is_no_stream_is_said(served: tuple[Bench, httpx.Client, str]) -> None:
    bench, client, _ = served
    infers = bench.make_key(Scope(Right.INFER, "*"))
    assert client.get("/events/usage", headers={"authorization": f"Bearer {infers}"}).status_code == 403
    refused = client.get("/events/secrets")
    assert refused.status_code == 400
    assert "usage" in json.dumps(refused.json())
