from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.jobs.domain.job import Blob, Charge, Job, JobState, Result
from control_plane.jobs.domain.job_text import decode_job, encode_job
from control_plane.jobs.domain.sweeps import Care, sweep
from control_plane.jobs.domain.transitions import (
    RetryPolicy,
    WrongState,
    attempt_failed,
    broken,
    cancelled,
    charged,
    claimed,
    expired,
    finished,
    released,
    renewed,
    requeued,
)
from control_plane.metering.domain.usage import Usage
from tests.fakes.jobs import job

POLICY = RetryPolicy(max_attempts=3, first_delay_s=1.0, max_delay_s=3.0, lease_s=10.0, keep_s=100.0)
RESULT = Result(Blob("b", 1, "d"), 200, 0)
CHARGE = Charge("2026-01-01", "m", Usage(requests=1))

STEPS: dict[str, Callable[[Job, float], Job]] = {
    "claimed": lambda job, now_s: claimed(job, holder="h", now_s=now_s, policy=POLICY),
    "renewed": lambda job, now_s: renewed(job, now_s=now_s, policy=POLICY),
    "released": lambda job, now_s: released(job, now_s=now_s, delay_s=2.0, error="busy"),
    "attempt_failed": lambda job, now_s: attempt_failed(job, error="e", now_s=now_s, policy=POLICY),
    "finished": lambda job, now_s: finished(job, RESULT, CHARGE, now_s=now_s, policy=POLICY),
    "broken": lambda job, now_s: broken(job, error="gone", now_s=now_s, policy=POLICY),
    "cancelled": lambda job, now_s: cancelled(job, now_s=now_s, policy=POLICY),
    "expired": lambda job, now_s: expired(job, now_s=now_s, policy=POLICY),
    "requeued": lambda job, now_s: requeued(job, now_s=now_s),
    "charged": lambda job, now_s: charged(job),
}
RUNNING = STEPS["claimed"](job(), 1.0)
IN_STATE = {
    JobState.QUEUED: job(),
    JobState.RUNNING: RUNNING,
    JobState.SUCCEEDED: STEPS["finished"](RUNNING, 2.0),
    JobState.FAILED: finished(RUNNING, Result(Blob("b", 1, "d"), 400, 0), CHARGE, now_s=2.0, policy=POLICY),
    JobState.CANCELLED: STEPS["cancelled"](RUNNING, 2.0),
    JobState.EXPIRED: STEPS["expired"](RUNNING, 2.0),
    JobState.DEAD: STEPS["broken"](RUNNING, 2.0),
}
LEADS = {
    (JobState.QUEUED, "claimed"): JobState.RUNNING,
    (JobState.QUEUED, "cancelled"): JobState.CANCELLED,
    (JobState.QUEUED, "expired"): JobState.EXPIRED,
    (JobState.RUNNING, "renewed"): JobState.RUNNING,
    (JobState.RUNNING, "released"): JobState.QUEUED,
    (JobState.RUNNING, "attempt_failed"): JobState.QUEUED,
    (JobState.RUNNING, "finished"): JobState.SUCCEEDED,
    (JobState.RUNNING, "broken"): JobState.DEAD,
    (JobState.RUNNING, "cancelled"): JobState.CANCELLED,
    (JobState.RUNNING, "expired"): JobState.EXPIRED,
    (JobState.SUCCEEDED, "charged"): JobState.SUCCEEDED,
    (JobState.FAILED, "charged"): JobState.FAILED,
    (JobState.DEAD, "requeued"): JobState.QUEUED,
}


@pytest.mark.parametrize(("state", "step"), list(product(JobState, STEPS)))
def test_each_transition_leads_where_the_table_says_or_is_refused(state: JobState, step: str) -> None:
    before = IN_STATE[state]
    assert before.state is state
    wanted = LEADS.get((state, step))
    if wanted is None:
        with pytest.raises(WrongState):
            STEPS[step](before, 3.0)
        return
    after = STEPS[step](before, 3.0)
    assert (after.state, after.revision) == (wanted, before.revision + 1)


def test_each_claim_has_a_number_of_its_own_and_counts_as_an_attempt() -> None:
    again = STEPS["claimed"](STEPS["released"](RUNNING, 2.0), 10.0)

    assert (RUNNING.fence, RUNNING.attempts, RUNNING.lease_until_s) == (1, 1, 11.0)
    assert (again.fence, again.attempts) == (2, 1), "an attempt that was given back does not count"
    assert STEPS["claimed"](attempt_failed(again, error="e", now_s=11.0, policy=POLICY), 20.0).attempts == 2


def test_attempts_are_made_after_longer_and_longer_delays_and_then_the_job_is_dead() -> None:
    now_s, found, delays = 0.0, job(), []
    while found.state is JobState.QUEUED:
        found = attempt_failed(STEPS["claimed"](found, now_s), error="broke", now_s=now_s, policy=POLICY)
        delays.append(found.ready_s - now_s)
        now_s = found.ready_s
    assert delays[:2] == [1.0, 2.0]
    assert (found.state, found.attempts, found.error, found.keep_until_s) == (JobState.DEAD, 3, "broke", now_s + 100.0)
    assert RetryPolicy().delay_s(10_000) == RetryPolicy().max_delay_s


def test_a_job_is_not_claimed_before_its_delay_or_after_its_deadline() -> None:
    for now_s, waiting in ((4.9, job(ready_s=5.0)), (1000.0, job())):
        with pytest.raises(WrongState):
            STEPS["claimed"](waiting, now_s)


def test_a_dead_job_that_is_queued_again_has_all_its_time_and_attempts() -> None:
    again = requeued(IN_STATE[JobState.DEAD], now_s=5000.0)

    assert (again.attempts, again.deadline_s, again.due_s, again.error, again.ended_s) == (0, 6000.0, 5100.0, "", None)
    assert STEPS["claimed"](again, 5000.0).fence == 2, "the fencing number goes on"


@pytest.mark.parametrize(
    ("found", "now_s", "expected"),
    [
        pytest.param(job(), 999.0, None, id="waits"),
        pytest.param(job(), 1000.0, JobState.EXPIRED, id="waited-too-long"),
        pytest.param(RUNNING, 10.9, None, id="held"),
        pytest.param(RUNNING, 11.0, JobState.QUEUED, id="lease-over"),
        pytest.param(RUNNING, 1000.0, JobState.EXPIRED, id="ran-too-long"),
        pytest.param(IN_STATE[JobState.SUCCEEDED], 6.9, None, id="being-charged"),
        pytest.param(IN_STATE[JobState.SUCCEEDED], 7.0, Care.CHARGE, id="not-charged"),
        pytest.param(charged(IN_STATE[JobState.SUCCEEDED]), 101.9, None, id="kept"),
        pytest.param(charged(IN_STATE[JobState.SUCCEEDED]), 102.0, Care.REMOVE, id="kept-long-enough"),
        pytest.param(IN_STATE[JobState.DEAD], 102.0, Care.REMOVE, id="dead-for-long"),
    ],
)
def test_the_sweeper_does_what_is_due(found: Job, now_s: float, expected: JobState | Care | None) -> None:
    done = sweep(found, now_s=now_s, still_s=POLICY.still_s, policy=POLICY)

    assert (done.state if isinstance(done, Job) else done) == expected


def test_a_lease_is_over_once_nobody_was_seen_to_renew_it_for_a_while() -> None:
    assert sweep(RUNNING, now_s=900.0, still_s=POLICY.still_s - 0.1, policy=POLICY) is None


def test_of_a_jobs_request_the_record_keeps_no_more_than_may_be_needed_again() -> None:
    headers = IN_STATE[JobState.QUEUED].headers
    assert headers
    for state, found in IN_STATE.items():
        assert found.headers == (headers if found.is_open or state is JobState.DEAD else ())


@pytest.mark.parametrize("state", JobState)
def test_a_record_comes_back_as_it_was(state: JobState) -> None:
    assert decode_job(encode_job(IN_STATE[state])) == IN_STATE[state]


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=30), st.lists(st.floats(0.0, 2000.0), min_size=30, max_size=30))
def test_whatever_happens_a_job_has_one_end_and_no_result_without_it(steps: list[str], times: list[float]) -> None:
    found, results = job(), 0
    for step, now_s in zip(steps, sorted(times), strict=False):
        try:
            after = STEPS[step](found, now_s)
        except WrongState:
            continue
        assert after.revision == found.revision + 1
        assert after.fence >= found.fence
        assert 0 <= after.attempts <= POLICY.max_attempts
        results += after.result is not None and found.result is None
        found = after
    assert results <= 1
    assert (found.result is not None) == (found.state in (JobState.SUCCEEDED, JobState.FAILED))
    assert found.is_open or found.ended_s is not None


def test_a_record_whose_bodies_are_in_the_spool_says_nothing_that_gateways_before_did_not_know() -> None:
    assert b'"data"' not in encode_job(IN_STATE[JobState.QUEUED])
