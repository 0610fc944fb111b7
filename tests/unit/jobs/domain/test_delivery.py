"""The delivery of a job's end as part of its record: when it begins, when it is tried again, and when it is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.jobs.domain.delivery import (
    GIVE_UP_S,
    JITTER,
    LEASE_S,
    MAX_DELAY_S,
    Delivery,
    DeliveryKind,
    DeliveryState,
    delivered,
    failed,
    gone,
    tried,
)
from control_plane.jobs.domain.job import Blob, Job, JobState, Result
from control_plane.jobs.domain.job_text import decode_job, encode_job
from control_plane.jobs.domain.job_view import view_of
from control_plane.jobs.domain.transitions import RetryPolicy, WrongState, broken, cancelled, claimed, expired, finished, requeued, told
from tests.fakes.jobs import job

URL = "https://receiver.example/hook?key=secret-of-the-receiver"
POLICY = RetryPolicy(max_attempts=1, keep_s=50.0)
PENDING = Delivery(URL, DeliveryState.PENDING, due_s=10.0, until_s=10.0 + GIVE_UP_S)


def running() -> Job:
    return claimed(job(webhook=Delivery(URL)), holder="h", now_s=1.0, policy=POLICY)


ENDS = [
    pytest.param(finished(running(), Result(Blob("b", 1, "d"), 200, 0), None, now_s=10.0, policy=POLICY), id="succeeded"),
    pytest.param(finished(running(), Result(Blob("b", 1, "d"), 400, 0), None, now_s=10.0, policy=POLICY), id="failed"),
    pytest.param(cancelled(running(), now_s=10.0, policy=POLICY), id="cancelled"),
    pytest.param(expired(running(), now_s=10.0, policy=POLICY), id="expired"),
    pytest.param(broken(running(), error="e", now_s=10.0, policy=POLICY), id="dead"),
]


@pytest.mark.parametrize("ended", ENDS)
def test_with_each_final_state_a_delivery_is_due(ended: Job) -> None:
    assert ended.webhook == PENDING
    assert decode_job(encode_job(ended)) == ended


def test_a_webhook_of_a_job_is_written_as_versions_before_know_it() -> None:
    assert b"about" not in encode_job(job(webhook=PENDING))


def test_a_job_without_one_is_written_as_versions_before_know_it() -> None:
    assert b"webhook" not in encode_job(job())
    assert b"output" not in encode_job(job())
    assert decode_job(encode_job(job())).webhook is None


def test_the_record_is_kept_until_its_delivery_is_over() -> None:
    ended = cancelled(running(), now_s=10.0, policy=POLICY)
    assert ended.look_at_s == 10.0 + GIVE_UP_S
    assert replace(ended, webhook=delivered(PENDING)).look_at_s == 60.0


def test_a_dead_job_that_is_queued_again_tells_of_its_next_end_only() -> None:
    again = requeued(broken(running(), error="e", now_s=10.0, policy=POLICY), now_s=20.0)
    assert (again.state, again.webhook) == (JobState.QUEUED, Delivery(URL))


def test_what_is_told_of_a_batch_is_no_matter_of_the_job_that_carries_it() -> None:
    """Also where an administrator queues that job again before it was told."""
    of_batch = replace(PENDING, event="batch.completed", about="batch_1")
    ended = told(broken(claimed(job(), holder="h", now_s=1.0, policy=POLICY), error="e", now_s=10.0, policy=POLICY), of_batch)
    assert decode_job(encode_job(ended)) == ended
    again = requeued(ended, now_s=20.0)
    assert again.due == ended.due == (DeliveryKind.WEBHOOK, of_batch)
    running_again = claimed(again, holder="h", now_s=21.0, policy=POLICY)
    done = finished(running_again, Result(Blob("b", 1, "d"), 200, 0), None, now_s=30.0, policy=POLICY)
    assert done.webhook == of_batch
    for refused in (ended, again):
        with pytest.raises(WrongState):
            told(refused, of_batch)


def test_who_tries_has_it_for_a_while() -> None:
    assert tried(PENDING, now_s=11.0) == replace(PENDING, attempts=1, due_s=11.0 + LEASE_S)


def test_delays_grow_and_spread_until_a_day_is_over() -> None:
    now_s, webhook, delays = 10.0, PENDING, []
    while webhook.is_pending:
        webhook = failed(tried(webhook, now_s=now_s), error="e" * 1000, now_s=now_s, draw=0.5)
        delays.append(webhook.due_s - now_s)
        now_s = webhook.due_s
    assert webhook.state is DeliveryState.FAILED
    assert len(webhook.error) == 200
    assert delays[:3] == [5.0, 15.0, 45.0]
    assert max(delays) == MAX_DELAY_S
    assert 15 < webhook.attempts < 30
    spread = [failed(tried(PENDING, now_s=10.0), error="", now_s=10.0, draw=draw).due_s - 10.0 for draw in (0.0, 1.0)]
    assert spread == pytest.approx([5 * (1 - JITTER), 5 * (1 + JITTER)])


def test_its_caller_sees_how_far_it_is_and_not_where_it_goes() -> None:
    ended = replace(job(), webhook=replace(PENDING, attempts=2, error="the receiver answered 500"))
    assert view_of(ended, None)["webhook"] == {
        "state": "pending",
        "attempts": 2,
        "next_at": "1970-01-01T00:00:10.000+00:00",
        "error": "the receiver answered 500",
    }
    assert view_of(replace(ended, webhook=gone(PENDING, error="e")), None)["webhook"] == {"state": "gone", "attempts": 0, "error": "e"}
    assert "secret-of-the-receiver" not in str(view_of(ended, None))
