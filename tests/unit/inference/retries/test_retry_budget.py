from __future__ import annotations

from control_plane.inference.retries.retry_budget import RetryBudget, RetryKind


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_tenth_of_what_is_asked_for_may_be_sent_again() -> None:
    clock = Clock()
    budget = RetryBudget(now_s=clock)
    assert budget.try_spend(20.0), "the one request a second"
    assert not budget.try_spend(20.0)
    for _ in range(20):
        budget.asked(10.0)
    assert budget.try_spend(20.0, RetryKind.HEDGE)
    assert not budget.try_spend(20.0, RetryKind.HEDGE)
    assert budget.try_spend(20.0, may_owe=True)
    assert {kind: count for kind, count in budget.totals.items() if count} == {
        (RetryKind.RESEND, True): 2,
        (RetryKind.RESEND, False): 1,
        (RetryKind.HEDGE, True): 1,
        (RetryKind.HEDGE, False): 1,
    }


def test_an_outage_of_a_minute_adds_a_tenth() -> None:
    clock, sent = Clock(), 0
    budget = RetryBudget(now_s=clock)
    for _ in range(6000):
        clock.now += 0.01
        budget.asked(30.0)
        sent += 1 + budget.try_spend(30.0)
    assert 6600 - 60 <= sent <= 6600 + 60


def test_processes_share_the_one_request_a_second() -> None:
    clock = Clock()
    budget = RetryBudget(now_s=clock)
    budget.processes = lambda: 4
    granted = 0
    for _ in range(400):
        clock.now += 0.1
        granted += budget.try_spend(1.0)
    assert granted in (10, 11)
