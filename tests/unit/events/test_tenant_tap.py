from __future__ import annotations

import json
from typing import Any

from control_plane.core.infer_call import Frontend, Outcome
from control_plane.events.tenant_feeds import MAX_EVENTS
from control_plane.events.tenant_tap import AT_ONCE, TenantTap
from control_plane.metering.domain.usage import UsageEvent


def ended(tenant: str = "team", **more: Any) -> UsageEvent:
    said: dict[str, Any] = {"request_id": "r", "server": "triton-3", **more}
    return UsageEvent(1.7e9, tenant, "k1", "m", "m", Frontend.HTTP, Outcome.ANSWERED, 0.25, 1, 2, 1.5, **said)


def test_only_what_is_followed_is_kept_and_no_server_is_told() -> None:
    tap = TenantTap()
    tap.write(ended())
    assert (tap.is_used, tap.take()) == (False, [])
    tap.follow(frozenset(("team",)))
    tap.write(ended())
    tap.write(ended("other"))
    tap.job_ended("other", 1.0, {"id": "job-2"})
    tap.job_ended("team", 1.0, {"id": "job-1"})
    request, job = tap.take()
    assert (request.tenant, request.kind, request.at_s) == ("team", "request.ended", 1.7e9)
    said = json.loads(request.data)
    assert said["request_id"] == "r"
    assert "server" not in said
    assert job == ("team", "job.ended", 1.0, '{"id":"job-1"}')
    assert tap.take() == []
    tap.follow(frozenset())
    tap.write(ended())
    assert tap.take() == []


def test_a_flood_loses_its_own_oldest_alone_and_says_how_many() -> None:
    tap = TenantTap()
    tap.follow(frozenset(("team", "other")))
    tap.write(ended("other"))
    for number in range(MAX_EVENTS + 3):
        tap.write(ended(request_id=str(number)))
    taken = []
    while some := tap.take():
        assert len(some) <= AT_ONCE + 2
        taken += some
    assert len([each for each in taken if each.tenant == "other"]) == 1
    mine = [each for each in taken if each.tenant == "team"]
    assert (mine[0].kind, json.loads(mine[0].data)) == ("events.lost", {"count": 3})
    assert json.loads(mine[1].data)["request_id"] == "3"
    assert len(mine) == MAX_EVENTS + 1


def test_texts_of_callers_are_ascii_and_end_no_line() -> None:
    tap = TenantTap()
    tap.follow(frozenset(("team",)))
    tap.write(ended(request_id="\u2028\n\ud800é"))
    (taken,) = tap.take()
    assert taken.data.isascii()
    assert "\n" not in taken.data
