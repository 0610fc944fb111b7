from __future__ import annotations

import asyncio
import itertools

import pytest

from control_plane.core.errors import ModelLoadFailed, ModelNotFound, StartupError
from control_plane.core.model import ModelOverride
from control_plane.telemetry.request_counts import RequestCounts, UnitsCount
from control_plane.triton.compute_time import OpenCharge
from control_plane.workers.messages.from_workers import (
    Alive,
    Charges,
    CountsReported,
    DrawTokens,
    Listening,
    LoadModel,
    SilenceSuspected,
    StartFailed,
    UnloadModel,
)
from control_plane.workers.messages.to_workers import (
    Changed,
    CollectCharges,
    Drain,
    FingerprintsChanged,
    Listen,
    ReloadTls,
    TokensDrawn,
    UpstreamDown,
    UpstreamSilence,
    UpstreamUp,
)
from control_plane.workers.parent.workers import Workers
from tests.aio import hold_up, settle
from tests.fakes import FakeModels, FakeUpstream, FakeWorkers
from tests.unit.workers.parent.workers_bench import counted
from tests.unit.workers.workers_bench import LIMITS, Bench, FakeCharges, opened, running, speaking

pytestmark = pytest.mark.virtual_time


def requests(bench: Bench) -> int:
    return sum(each.count for each in bench.workers.counts().ended)


class TestOpening:
    async def test_each_number_is_started_once_and_listens_when_told(self) -> None:
        async with running(3) as bench:
            assert [worker.number for worker in bench.started] == [0, 1, 2]
            assert not any(worker.messages_of(Listen) for worker in bench.started)
            async with asyncio.TaskGroup() as tasks:
                opening = tasks.create_task(bench.workers.open())
                await settle()
                assert all(worker.messages_of(Listen) for worker in bench.started)
                bench.started[0].say(Listening())
                bench.started[2].say(Listening())
                await settle()
                assert (opening.done(), bench.workers.listening) == (False, 2)
                bench.started[1].say(Listening())
            assert bench.workers.listening == 3

    async def test_one_that_cannot_work_as_it_is_set_ends_the_start_and_all_of_them(self) -> None:
        bench = Bench(2)

        async def start() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(bench.workers.run(bench.models, bench.charges))
                await settle()
                bench.started[1].say(StartFailed("the port is taken"))

        with pytest.raises(ExceptionGroup) as caught:
            await start()
        assert caught.group_contains(StartupError, match="the port is taken")
        assert all(worker.is_killed for worker in bench.started)

    async def test_one_that_never_comes_up_ends_the_start_after_some_attempts(self) -> None:
        bench = Bench(1)

        async def start() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(bench.workers.run(bench.models, bench.charges))
                for lives in (1, 2, 3):
                    while len(bench.started) < lives:
                        await asyncio.sleep(0.5)
                    bench.started[-1].end()

        with pytest.raises(ExceptionGroup) as caught:
            await start()
        assert caught.group_contains(StartupError, match="worker 0 does not start: it ended")


class TestRestart:
    async def test_one_that_dies_comes_back_knowing_all_that_the_others_know(self) -> None:
        async with opened() as bench:
            upstream = FakeUpstream()
            bench.workers.upstream.up(upstream)
            bench.started[0].end()
            await settle()
            assert (bench.workers.listening, len(bench.started)) == (1, 2)
            await asyncio.sleep(1.5)
            again = bench.started[2]
            assert again.number == 0
            assert again.told == [UpstreamUp(upstream.endpoints), FingerprintsChanged(0, {}), Listen()]
            again.say(Listening())
            await settle()
            assert bench.workers.listening == 2

    async def test_after_the_start_it_is_tried_for_ever_with_a_growing_delay(self) -> None:
        async with opened(1) as bench:
            started_s = []
            for lives in range(1, 8):
                while len(bench.started) < lives:
                    await asyncio.sleep(0.1)
                started_s.append(asyncio.get_running_loop().time())
                bench.started[-1].say(StartFailed("for now"))
                bench.started[-1].end()
            delays_s = [after - before for before, after in itertools.pairwise(started_s)]
            assert delays_s == pytest.approx([1, 2, 4, 8, 8, 8], abs=0.3)

    async def test_all_are_told_that_triton_is_silent_and_who_starts_meanwhile_too(self) -> None:
        async with opened() as bench:
            upstream = FakeUpstream()
            bench.workers.upstream.up(upstream)
            bench.workers.upstream.silence_changed(True)
            assert [worker.told[-1] for worker in bench.started] == [UpstreamSilence(is_silent=True)] * 2
            bench.started[0].end()
            await asyncio.sleep(1.5)
            assert bench.started[2].told[:2] == [UpstreamUp(upstream.endpoints), UpstreamSilence(is_silent=True)]
            bench.workers.upstream.up(upstream)
            bench.started[1].end()
            await asyncio.sleep(1.5)
            assert bench.started[3].told[:2] == [UpstreamUp(upstream.endpoints), FingerprintsChanged(0, {})]

    async def test_one_that_freezes_gets_no_connections_within_two_seconds_and_is_replaced_when_it_is_back(self) -> None:
        async with opened() as bench, speaking(bench.started[1]):
            frozen, other = bench.started
            async with speaking(frozen):
                await asyncio.sleep(5.0)
                assert frozen.accepts
                said_s = asyncio.get_running_loop().time()
            while frozen.accepts:
                await asyncio.sleep(0.01)
            assert asyncio.get_running_loop().time() - said_s <= 2.0
            await asyncio.sleep(5.0)
            assert bench.workers.listening == 1
            assert not frozen.is_killed
            assert not frozen.messages_of(Drain)
            frozen.say(Alive())
            await asyncio.sleep(0.5)
            assert frozen.messages_of(Drain)
            assert other.accepts
            assert not other.messages_of(Drain)
            frozen.end()
            await asyncio.sleep(1.5)
            assert len(bench.started) == 3

    async def test_a_model_that_one_of_them_hears_is_not_suspected_whatever_others_say(self) -> None:
        async with opened() as bench:
            told = list[tuple[str, str, float]]()
            bench.workers.suspect = lambda *what: told.append(what)
            first, second = bench.started
            first.say(Alive(streaming=(("s0", "a"),)))
            second.say(SilenceSuspected("s0", "a", 1.0))
            second.say(SilenceSuspected("s1", "a", 2.0))
            second.say(SilenceSuspected("s0", "b", 3.0))
            await asyncio.sleep(0.1)
            assert told == [("s1", "a", 2.0), ("s0", "b", 3.0)]
            first.say(Alive())
            await asyncio.sleep(0.1)
            second.say(SilenceSuspected("s0", "a", 4.0))
            await asyncio.sleep(0.1)
            assert told[-1] == ("s0", "a", 4.0)

    async def test_one_that_does_not_come_back_is_killed_and_replaced(self) -> None:
        async with opened(1) as bench:
            await asyncio.sleep(29.0)
            assert not bench.started[0].is_killed
            await asyncio.sleep(2.0)
            assert bench.started[0].is_killed

    async def test_while_this_process_does_not_run_nobody_is_frozen(self) -> None:
        async with opened(1) as bench:
            for _ in range(20):
                hold_up(0.5)
                await asyncio.sleep(0.01)
            assert bench.started[0].accepts

    async def test_one_that_is_still_starting_is_not_frozen(self) -> None:
        async with running(1) as bench:
            await asyncio.sleep(20.0)
            assert bench.started[0].accepts

    async def test_all_are_told_of_changes(self) -> None:
        async with opened() as bench:
            bench.workers.upstream.down("Triton has ended")
            bench.workers.reload_tls()
            for worker in bench.started:
                assert worker.told[-2:] == [UpstreamDown("Triton has ended"), ReloadTls()]

    async def test_goes_on_trying_when_the_machine_cannot_start_another_process(self) -> None:
        async with opened(1) as bench:
            bench.launcher.failure = StartupError("worker 0 cannot be started: out of memory")
            bench.started[0].kill()
            await asyncio.sleep(20)
            bench.launcher.failure = None
            await asyncio.sleep(10)
            assert len(bench.started) == 2

    async def test_is_not_tried_when_the_first_one_cannot_be_started(self) -> None:
        launcher = FakeWorkers(failure=StartupError("worker 0 cannot be started: out of memory"))
        with pytest.raises(BaseExceptionGroup) as caught:
            await Workers(count=1, launcher=launcher, limits=LIMITS).run(FakeModels(), FakeCharges())
        assert caught.group_contains(StartupError, match="out of memory")


class TestCounts:
    async def test_are_the_sum_of_the_latest_of_each(self) -> None:
        async with opened() as bench:
            for worker, count in ((0, 1), (1, 10), (0, 5)):
                bench.started[worker].say(CountsReported(counted(count, in_flight=2)))
            await settle()
            assert (requests(bench), bench.workers.counts().in_flight) == (15, 4)

    async def test_what_the_parent_has_counted_itself_is_added(self) -> None:
        async with opened() as bench:
            for worker in bench.started:
                worker.say(CountsReported(RequestCounts(units=(UnitsCount("a", 1.0),))))
            await settle()
            own = RequestCounts(units=(UnitsCount("a", 0.5), UnitsCount("b", 4.0)))
            assert bench.workers.counts(own).units == (UnitsCount("a", 2.5), UnitsCount("b", 4.0))

    async def test_never_fall_when_a_worker_dies_and_starts_from_nothing(self) -> None:
        async with opened(1) as bench:
            bench.started[0].say(CountsReported(counted(7, in_flight=3)))
            await settle()
            bench.started[0].kill()
            await settle()
            assert (requests(bench), bench.workers.counts().in_flight) == (7, 0)
            await asyncio.sleep(1.5)
            bench.started[1].say(CountsReported(counted(2, in_flight=1)))
            await settle()
            assert (requests(bench), bench.workers.counts().in_flight) == (9, 1)

    async def test_the_last_ones_of_a_worker_that_ends_are_kept(self) -> None:
        async with opened(1) as bench:
            bench.started[0].say(CountsReported(counted(7)))
            bench.started[0].end()
            await settle()
            assert requests(bench) == 7

    async def test_what_is_degraded_in_any_of_them_is_told_once_while_it_is(self) -> None:
        async with opened() as bench:
            assert bench.workers.degraded() == []
            for worker in bench.started:
                worker.say(CountsReported(counted(1), ("usage waits",)))
            await settle()
            assert bench.workers.degraded() == ["usage waits"]
            for worker in bench.started:
                worker.say(CountsReported(counted(1)))
            await settle()
            assert bench.workers.degraded() == []


class TestBuckets:
    async def test_all_workers_draw_from_the_same(self) -> None:
        async with opened() as bench:
            for number, worker in enumerate(bench.started):
                worker.say(DrawTokens(number, "t", 1.0, 3.0, want=2, spent=0))
                worker.say(DrawTokens(number, "u", 1.0, 3.0, want=2, spent=0))
            await settle()
            granted = [[(told.number, told.granted) for told in worker.messages_of(TokensDrawn)] for worker in bench.started]
            assert granted == [[(0, 2), (0, 2)], [(1, 1), (1, 1)]]


class TestCharges:
    async def test_what_workers_tell_is_included(self) -> None:
        async with opened() as bench:
            told = [OpenCharge("t", "m", "m", 1.0, 2.0), OpenCharge("u", "m", "m", left_rows=1.0)]
            for worker, charge in zip(bench.started, told, strict=True):
                worker.say(Charges([charge]))
            await settle()
            assert bench.charges.open == told

    @pytest.mark.parametrize("other", ["answers", "is slow", "dies"])
    async def test_they_are_collected_from_all_and_from_a_slow_one_later(self, other: str) -> None:
        async with opened() as bench, asyncio.TaskGroup() as tasks:
            began_s = asyncio.get_running_loop().time()
            collecting = tasks.create_task(bench.workers.collect_charges())
            await settle()
            assert [worker.told[-1] for worker in bench.started] == [CollectCharges(1)] * 2
            bench.started[0].say(Charges([OpenCharge("t", "m", "m", 1.0)], 1))
            if other == "answers":
                bench.started[1].say(Charges([], 1))
            elif other == "dies":
                bench.started[1].kill()
            await collecting
            waited_s = asyncio.get_running_loop().time() - began_s
            assert waited_s == pytest.approx(0.25 if other == "is slow" else 0.0)
            assert len(bench.charges.open) == 1


class TestChanges:
    async def test_are_done_by_the_parent_and_told_to_the_one_who_asked(self) -> None:
        async with opened() as bench:
            asking, other = bench.started
            asking.say(LoadModel(1, "a"))
            asking.say(LoadModel(2, "b", "{}", {"file:1/x": b"y"}))
            asking.say(UnloadModel(3, "c", True))
            await settle()
            override = ModelOverride("{}", {"file:1/x": b"y"})
            assert bench.models.asked == [("load", "a", None), ("load", "b", override), ("unload", "c", True)]
            assert asking.messages_of(Changed) == [Changed(1), Changed(2), Changed(3)]
            assert other.messages_of(Changed) == []

    async def test_that_fail_are_told_with_all_that_the_frontend_needs(self) -> None:
        async with opened() as bench:
            bench.models.failures = {"a": ModelLoadFailed("bad weights", upstream_code=3), "b": ModelNotFound("no b")}
            bench.started[0].say(LoadModel(1, "a"))
            bench.started[0].say(UnloadModel(2, "b", False))
            await settle()
            assert bench.started[0].messages_of(Changed) == [
                Changed(1, "load_failed", "bad weights", 3),
                Changed(2, "model_not_found", "no b", 0),
            ]

    async def test_under_way_do_not_hold_up_the_next_life_of_a_worker_that_dies(self) -> None:
        async with opened(1) as bench:
            bench.models.is_stuck = True
            bench.started[0].say(LoadModel(1, "a"))
            await settle()
            bench.started[0].kill()
            await settle()
            assert bench.workers.listening == 0
            await asyncio.sleep(1.5)
            assert len(bench.started) == 2

    async def test_that_fail_by_a_defect_are_told_and_end_nothing_else(self) -> None:
        async with opened(1) as bench:
            bench.models.failures = {"a": RuntimeError("unforeseen")}
            bench.started[0].say(LoadModel(1, "a"))
            bench.started[0].say(LoadModel(2, "b"))
            await settle()
            told = bench.started[0].messages_of(Changed)
            assert [(each.number, each.error_code) for each in told] == [(1, "upstream_failed"), (2, "")]
            assert bench.workers.listening == 1
