from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from control_plane.core.errors import DeadlineExceeded, ModelLoadFailed, StartupError, UpstreamFailed
from control_plane.tuning.domain.candidates import DEFAULT, Knob, Level
from control_plane.tuning.domain.search import FINAL_ROUNDS, Axis, expected_candidates
from control_plane.tuning.tuner import Tuner, TuningPlan, TuningProgress
from tests.aio import run_in_virtual_time, settle
from tests.fakes import FakeLoad, FakeTuningServers

TWO = DEFAULT.changed(Knob.INSTANCES, 2)
FOUR = DEFAULT.changed(Knob.INSTANCES, 4)
AXES = (Axis(Knob.INSTANCES, (2, 4)), Axis(Knob.QUEUE_DELAY, (500,)))

THROUGHPUT = {"default": 100.0, TWO.label: 300.0, FOUR.label: 200.0}


def measured(address: str, concurrency: int) -> Level:
    return Level(concurrency, THROUGHPUT.get(address, 50.0) * min(concurrency, 8), 1.0, 5.0 * concurrency)


class Lab:
    """A tuner over fakes; by default everything fits the budget."""

    def __init__(
        self,
        *,
        axes: Sequence[Axis] = AXES,
        budget_s: float = 1000.0,
        load: Callable[[str, int], Level] = measured,
    ) -> None:
        self.servers = FakeTuningServers()
        self.load = FakeLoad(load)
        self.progress: list[TuningProgress] = []
        plan = TuningPlan(axes, (1, 8), limit_ms=50.0, budget_s=budget_s)
        self.tuner = Tuner(plan, servers=self.servers, load=self.load, report=self.progress.append)

    def final_calls(self) -> list[tuple[str, int]]:
        """Return the last calls: the final rounds of three finalists at two levels."""
        return self.load.calls[-3 * FINAL_ROUNDS * 2 :]


def test_the_best_that_beats_the_default_is_recommended() -> None:
    lab = Lab()
    result = run_in_virtual_time(lab.tuner.run())
    assert result.recommendation.candidate == TWO
    assert list(result.screened) == [DEFAULT, TWO, FOUR, TWO.changed(Knob.QUEUE_DELAY, 500)]
    assert {candidate: len(rounds) for candidate, rounds in result.rounds.items()} == dict.fromkeys((DEFAULT, TWO, FOUR), FINAL_ROUNDS)
    assert not result.failures
    assert lab.servers.running == []


def test_what_does_not_beat_it_is_not() -> None:
    lab = Lab(load=lambda _, concurrency: Level(concurrency, 100.0, 1.0, 5.0))
    assert run_in_virtual_time(lab.tuner.run()).recommendation.candidate == DEFAULT


def test_one_server_at_a_time_until_the_finals_and_each_is_warmed_up_at_the_highest_load() -> None:
    lab = Lab()
    run_in_virtual_time(lab.tuner.run())
    screened = lab.load.calls[: 3 * 4]
    assert screened[:3] == [("default", 8), ("default", 1), ("default", 8)]
    assert [address for address, _ in screened] == [each.label for each in lab.servers.started[:4] for _ in range(3)]
    assert lab.servers.most_at_a_time == 3


def test_final_rounds_are_by_turns() -> None:
    lab = Lab()
    run_in_virtual_time(lab.tuner.run())
    one_round = [(candidate.label, level) for candidate in (DEFAULT, TWO, FOUR) for level in (1, 8)]
    assert lab.final_calls() == one_round * FINAL_ROUNDS


def test_rows_are_the_finalists_medians_then_the_others() -> None:
    rows = list(run_in_virtual_time(Lab().tuner.run()).rows())
    assert [(row.candidate, row.rounds, row.level.concurrency) for row in rows] == [
        *((candidate, FINAL_ROUNDS, level) for candidate in (DEFAULT, TWO, FOUR) for level in (1, 8)),
        *((TWO.changed(Knob.QUEUE_DELAY, 500), 1, level) for level in (1, 8)),
    ]


def test_one_that_cannot_be_served_is_told_and_the_rest_goes_on() -> None:
    lab = Lab()
    lab.servers.failures[TWO] = ModelLoadFailed("no memory")
    result = run_in_virtual_time(lab.tuner.run())
    assert result.failures == {TWO: "no memory"}
    assert result.screened[TWO] == ()
    assert result.recommendation.candidate == FOUR


def test_one_that_fails_in_the_finals_is_left_out_of_them() -> None:
    lab = Lab()
    lab.load.failures[4 * 3 + 3 + 2] = UpstreamFailed("it broke")  # the first final run of the second finalist
    result = run_in_virtual_time(lab.tuner.run())
    assert result.failures == {TWO: "it broke"}
    assert list(result.rounds) == [DEFAULT, FOUR]
    assert result.recommendation.candidate == FOUR


@pytest.mark.parametrize("call", [pytest.param(0, id="warming up"), pytest.param(2, id="measuring"), pytest.param(15, id="in the finals")])
def test_without_the_default_there_is_nothing_to_compare(call: int) -> None:
    lab = Lab()
    lab.load.failures[call] = UpstreamFailed("it broke")
    with pytest.raises(UpstreamFailed, match="it broke"):
        run_in_virtual_time(lab.tuner.run())
    assert lab.servers.running == []


def test_a_default_that_cannot_be_served_is_an_error() -> None:
    lab = Lab()
    lab.servers.failures[DEFAULT] = StartupError("no libpython")
    with pytest.raises(StartupError, match="no libpython"):
        run_in_virtual_time(lab.tuner.run())


def test_one_that_never_becomes_ready_costs_the_budget_and_no_more() -> None:
    lab = Lab(budget_s=100.0)
    lab.servers.hanging.add(FOUR)
    result = run_in_virtual_time(lab.tuner.run())
    assert "within 100 s (--budget-s)" in result.failures[FOUR]
    assert result.recommendation.candidate == DEFAULT


def test_a_default_that_never_becomes_ready_is_an_error() -> None:
    lab = Lab(budget_s=100.0)
    lab.servers.hanging.add(DEFAULT)
    with pytest.raises(DeadlineExceeded, match="default was not served and measured within 100 s"):
        run_in_virtual_time(lab.tuner.run())


def test_nothing_to_turn_is_measured_and_said() -> None:
    lab = Lab(axes=())
    result = run_in_virtual_time(lab.tuner.run())
    assert list(result.screened) == [DEFAULT]
    assert result.recommendation.candidate == DEFAULT


@pytest.mark.parametrize("budget_s", [30.0, 40.0, 60.0, 200.0])
def test_the_budget_bounds_the_time(budget_s: float) -> None:
    lab = Lab(budget_s=budget_s, axes=(*AXES, Axis(Knob.THREADS, tuple(range(1, 20)))))

    async def elapsed_s() -> float:
        started_s = asyncio.get_running_loop().time()
        result = await lab.tuner.run()
        assert len(result.rounds[DEFAULT]) == FINAL_ROUNDS, "and leaves time for the final rounds"
        assert len(result.screened) < expected_candidates((*AXES, Axis(Knob.THREADS, tuple(range(1, 20))))) or budget_s == 200.0
        return asyncio.get_running_loop().time() - started_s

    assert run_in_virtual_time(elapsed_s()) <= budget_s


def test_a_budget_for_nothing_recommends_the_default_and_says_why() -> None:
    result = run_in_virtual_time(Lab(budget_s=5.0).tuner.run())
    assert result.recommendation.candidate == DEFAULT
    assert "raise --budget-s" in result.recommendation.reason


def test_progress_never_goes_back_and_ends_at_what_it_expects() -> None:
    lab = Lab()
    run_in_virtual_time(lab.tuner.run())
    done = [each.done for each in lab.progress]
    assert done == sorted(done)
    assert all(each.done <= each.expected for each in lab.progress)
    assert lab.progress[-1].done == lab.progress[-1].expected - 1, "the last is told before it is done"
    assert {"starting default", "default, 8 in flight", "instances 2, 1 in flight"} <= {each.doing for each in lab.progress}


@pytest.mark.parametrize("after_s", [0.5, 1.2, 2.0, 8.0, 25.0, 60.0], ids=lambda value: f"{value} s")
@pytest.mark.virtual_time
async def test_cancelled_anywhere_it_ends_every_server(after_s: float) -> None:
    lab = Lab()

    tuning = asyncio.get_running_loop().create_task(lab.tuner.run())
    await asyncio.sleep(after_s)
    assert not tuning.done(), "the test's moment is too late"
    tuning.cancel()
    await settle()
    assert tuning.cancelled()
    assert lab.servers.running == []
