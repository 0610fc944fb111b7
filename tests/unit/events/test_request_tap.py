from __future__ import annotations

import json

import pytest

from control_plane.core.infer_call import Frontend, Outcome
from control_plane.events import request_tap as module
from control_plane.events.request_tap import AT_ONCE, RequestEncoder, RequestTap
from control_plane.metering.domain.usage import UsageEvent


def event(number: int) -> UsageEvent:
    return UsageEvent(0.0, "t", "k", "m", "m", Frontend.HTTP, Outcome.ANSWERED, 0.01, 1, 1, 1.0, number=number)


def test_what_has_come_is_given_once_in_its_order_and_not_too_much_at_a_time() -> None:
    tap = RequestTap(RequestEncoder("/g"))
    for number in range(AT_ONCE + 1):
        tap.write(event(number))
    numbers = [int(json.loads(text)["id"].partition("-")[2]) for part in (tap.take(), tap.take()) for text in part]
    assert numbers == list(range(AT_ONCE + 1))
    assert tap.take() == []


def test_beyond_its_bound_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 10)
    tap = RequestTap(RequestEncoder("/g"))
    for number in range(25):
        tap.write(event(number))
    assert (len(tap.take()), tap.dropped) == (10, 15)


def test_ids_of_two_processes_differ() -> None:
    ids = {json.loads(RequestEncoder("/g")(event(1)))["id"] for _ in range(2)}
    assert len(ids) == 2
