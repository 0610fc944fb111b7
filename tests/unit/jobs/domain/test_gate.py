from __future__ import annotations

from control_plane.jobs.domain.gate import BulkGate


def after(gate: BulkGate, *seconds: float, since_s: float = 0.0, rows: int = 1, model: str = "m") -> float:
    now_s = since_s
    for each in seconds:
        now_s += each
        gate.ended(model, seconds=each, rows=rows, now_s=now_s)
    return now_s


def test_while_jobs_are_quick_one_more_runs_after_each_round_up_to_the_most() -> None:
    gate = BulkGate(most=4)

    after(gate, 0.1)
    assert gate.slots == 2
    after(gate, 0.1, 0.1)
    assert gate.slots == 2
    after(gate, *[0.1] * 50)
    assert (gate.slots, gate.pause_s) == (4, 0.0)


def test_queue_delay_halves_the_limit_once_a_round() -> None:
    gate = BulkGate(most=8, limit=8.0)
    now_s = after(gate, 0.1)

    after(gate, 0.3, since_s=now_s)
    assert gate.limit == 4.0
    gate.ended("m", seconds=0.3, rows=1, now_s=now_s + 0.4)  # began before the change
    assert gate.limit == 4.0
    gate.ended("m", seconds=0.3, rows=1, now_s=now_s + 0.7)
    assert gate.limit == 2.0


def test_small_delays_and_large_jobs_are_no_queue() -> None:
    gate = BulkGate(most=8, limit=4.0)
    now_s = after(gate, 0.010)
    now_s = after(gate, 0.030, since_s=now_s)
    after(gate, 0.64, since_s=now_s, rows=64)

    assert gate.limit > 4.0


def test_where_one_at_a_time_is_too_many_there_are_pauses_and_they_end() -> None:
    gate = BulkGate(most=8)
    now_s = after(gate, 0.1, *[0.4] * 10)
    assert gate.slots == 1
    assert 0.4 < gate.pause_s <= 2.0

    after(gate, *[0.1] * 20, since_s=now_s)
    assert gate.pause_s == 0.0
    assert gate.slots > 1


def test_what_was_learned_of_a_model_is_forgotten() -> None:
    gate = BulkGate(most=8, limit=8.0)
    now_s = after(gate, 0.001)

    for pause_s in (31.0, 31.0, 31.0):  # it has become slower for good, as after a reload
        now_s += pause_s
        gate.ended("m", seconds=0.1, rows=1, now_s=now_s)
    before = gate.limit
    gate.ended("m", seconds=0.1, rows=1, now_s=now_s + 1)
    assert gate.limit >= before


def test_a_refusal_halves_the_limit() -> None:
    gate = BulkGate(most=8, limit=8.0)
    gate.refused(10.0)
    assert gate.limit == 4.0


def test_where_nobody_else_sends_to_the_servers_one_runs_at_a_time_at_least() -> None:
    gate = BulkGate(most=8, least=1.0)
    after(gate, 0.1, *[0.9] * 10)
    gate.refused(1e6)
    assert (gate.slots, gate.limit, gate.pause_s) == (1, 1.0, 0.0)


def test_jobs_among_themselves_settle_where_they_wait_for_as_long_as_they_may() -> None:
    gate, now_s, seen = BulkGate(most=32, limit=1.0), 0.0, []
    for _ in range(1000):  # one server that takes 10 ms for each, one after the other
        now_s += 0.010
        gate.ended("m", seconds=0.010 * gate.slots, rows=1, now_s=now_s)
        seen.append(gate.slots)

    assert set(seen[500:]) <= {6, 7, 8}, "7 wait for 60 ms; halved and raised again they would be 3 to 7"


def test_callers_who_come_then_halve_them() -> None:
    gate = BulkGate(most=32, limit=7.0)
    now_s = after(gate, 0.010)
    gate.ended("m", seconds=0.070 + 0.100, rows=1, now_s=now_s + 0.2)
    assert gate.slots == 3
