"""What a model service loads by itself: at the start, after a restart of Triton, and once it is built."""

from __future__ import annotations

import asyncio
import logging
from threading import Event

import pytest

from control_plane.core.errors import ModelLoadFailed, StartupError, UpstreamFailed
from control_plane.core.model import ModelState
from control_plane.models.model_service import LoadFailure
from tests.aio import run, settle
from tests.unit.models.model_service_bench import Bench, Warm


class TestRestore:
    def test_at_start_loads_what_was_asked_for(self) -> None:
        bench = Bench("a", "c")
        assert run(bench.service.restore(bench.upstream)) == []
        assert sorted(bench.control.loads) == ["a", "c"]
        assert bench.repository.placed[0] == "*"

    async def test_the_event_loop_goes_on_while_models_are_placed(self) -> None:
        bench = Bench()
        placed = bench.repository.places_all_when = Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.service.restore(bench.upstream))
            await settle()
            placed.set()
        assert bench.repository.placed == ["*"]

    def test_at_start_the_repositories_must_be_usable(self) -> None:
        bench = Bench("a")
        bench.repository.cannot_place_all = StartupError("two models are called 'b'")
        for _ in range(2):
            with pytest.raises(StartupError, match="two models"):
                run(bench.service.restore(bench.upstream))
        assert bench.control.loads == []

    def test_nothing_asked_for_is_nothing_loaded(self) -> None:
        bench = Bench()
        assert run(bench.service.restore(bench.upstream)) == []
        assert bench.control.loads == []
        assert bench.repository.placed == ["*"]

    def test_a_name_given_twice_is_loaded_once(self) -> None:
        bench = Bench("a", "a")
        run(bench.service.restore(bench.upstream))
        assert bench.control.loads == ["a"]

    def test_a_star_is_all_of_the_repositories_and_of_triton(self) -> None:
        bench = Bench("*")
        bench.control.states["z"] = ModelState.UNAVAILABLE
        bench.repository.models.append("z")
        run(bench.service.restore(bench.upstream))
        assert sorted(bench.control.loads) == ["a", "b", "c", "z"]

    def test_a_star_for_an_attached_triton_is_its_index(self) -> None:
        bench = Bench("*", has_repository=False)
        bench.control.states |= {"y": ModelState.UNAVAILABLE, "z": ModelState.READY}
        run(bench.service.restore(bench.upstream))
        assert sorted(bench.control.loads) == ["y", "z"]

    def test_what_fails_is_reported_and_the_rest_is_served(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench("a", "b", "c", "nope")
        bench.control.failures["b"] = ModelLoadFailed("bad weights")
        bench.repository.failures["c"] = ModelLoadFailed("not built")
        with caplog.at_level(logging.INFO):
            failures = run(bench.service.restore(bench.upstream))
        assert sorted((record.levelname, record.model) for record in caplog.records) == [  # type: ignore[attr-defined]
            ("ERROR", "b"),
            ("ERROR", "c"),
            ("ERROR", "nope"),
            ("INFO", "a"),
        ]
        assert failures == [LoadFailure("b", "bad weights"), LoadFailure("c", "not built"), LoadFailure("nope", "no model 'nope'")]
        assert run(bench.service.get("a")).state is ModelState.READY

    async def test_loads_at_the_same_time(self) -> None:
        bench = Bench("a", "b", "c")
        bench.control.calls.hold()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.service.restore(bench.upstream))
            for _ in range(3):
                await bench.control.calls.arrivals.get()
            bench.control.calls.may_answer.set()

    def test_steps_before_what_needs_them(self) -> None:
        bench = Bench("a", "b", "c")
        bench.repository.steps = {"a": ["b", "c"], "b": ["c"]}
        run(bench.service.restore(bench.upstream))
        assert bench.control.loads == ["c", "b", "a"]

    async def test_cancelling_it_cancels_every_load(self) -> None:
        bench = Bench("a", "b")
        bench.control.calls.hold()
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(bench.service.restore(bench.upstream))
            for _ in range(2):
                await bench.control.calls.arrivals.get()
            task.cancel()
        assert task.cancelled()
        assert bench.control.calls.in_progress == 0

    def test_a_defect_is_not_taken_for_a_failed_load(self) -> None:
        bench = Bench("a")
        bench.control.failures["a"] = RuntimeError("a bug")
        with pytest.raises(RuntimeError, match="a bug"):
            run(bench.service.restore(bench.upstream))

    def test_a_star_that_cannot_be_expanded_is_an_error_and_is_expanded_at_the_next_try(self) -> None:
        bench = Bench("*")
        bench.control.failures["index"] = UpstreamFailed("x")
        bench.fails(bench.service.restore(bench.upstream), UpstreamFailed)
        assert sorted(bench.restart()) == ["a", "b", "c"]


class TestAfterARestart:
    def test_what_was_loaded_comes_back_and_what_was_unloaded_does_not(self) -> None:
        bench = Bench("a", "b")
        run(bench.service.restore(bench.upstream))
        bench.does(bench.service.load("c"))
        bench.does(bench.service.unload("a"))
        assert sorted(bench.restart()) == ["b", "c"]
        assert sorted(bench.restart()) == ["b", "c"]

    def test_a_star_does_not_bring_back_what_was_unloaded(self) -> None:
        bench = Bench("*")
        run(bench.service.restore(bench.upstream))
        bench.does(bench.service.unload("a"))
        assert sorted(bench.restart()) == ["b", "c"]

    def test_what_failed_at_start_is_tried_again(self) -> None:
        bench = Bench("a")
        bench.control.failures["a"] = ModelLoadFailed("x")
        assert len(run(bench.service.restore(bench.upstream))) == 1
        assert bench.restart() == ["a"]

    def test_the_files_are_placed_anew(self) -> None:
        bench = Bench("a")
        run(bench.service.restore(bench.upstream))
        bench.restart()
        assert bench.repository.placed == ["*", "a", "*", "a"]

    def test_they_need_not_be_usable_any_more(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench("a")
        run(bench.service.restore(bench.upstream))
        bench.repository.cannot_place_all = StartupError("two models are called 'b'")
        assert bench.restart() == ["a"]
        assert "since the repositories have become unusable: two models are called 'b'" in caplog.text


class TestInAFleet:
    def test_a_triton_that_comes_back_gets_nothing_before_somebody_asks(self) -> None:
        warm = Warm()
        bench = Bench(restores=False, tiers=warm)
        bench.does(bench.service.load("a"))
        assert bench.restart() == []
        assert warm.pinned_now == []


class TestWhatWasBuilt:
    def bench(self, *load: str) -> Bench:
        bench = Bench(*load)
        bench.repository.models += ["ensemble", "outer", "encoder"]
        bench.repository.steps = {"ensemble": ["encoder"], "outer": ["encoder", "ensemble"]}
        bench.does(bench.service.restore(bench.upstream))
        bench.control.loads.clear()
        return bench

    def test_is_loaded_with_all_that_is_wanted_and_made_of_it(self) -> None:
        bench = self.bench("ensemble", "a", "outer")
        bench.does(bench.service.reload_built("encoder"))
        assert bench.control.loads == ["ensemble", "outer"]

    def test_is_loaded_where_it_is_wanted_itself(self) -> None:
        bench = self.bench("encoder")
        bench.does(bench.service.reload_built("encoder"))
        assert bench.control.loads == ["encoder"]

    def test_is_not_loaded_where_nobody_wants_it(self) -> None:
        bench = self.bench("a", "gone")
        bench.does(bench.service.reload_built("encoder"))
        assert bench.control.loads == []
        attached = Bench("encoder", has_repository=False)
        attached.does(attached.service.restore(attached.upstream))
        attached.control.loads.clear()
        attached.does(attached.service.reload_built("encoder"))
        assert attached.control.loads == []

    def test_is_loaded_where_its_first_load_failed_for_the_want_of_it(self) -> None:
        bench = Bench("a")
        bench.control.failures["a"] = ModelLoadFailed("variant 'int8' is not built")
        bench.does(bench.service.restore(bench.upstream))
        del bench.control.failures["a"]
        bench.does(bench.service.reload_built("a"))
        assert bench.control.states["a"] is ModelState.READY

    def test_of_one_that_fails_the_reason_is_logged_and_the_others_are_loaded(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = self.bench("ensemble", "outer")
        bench.control.failures["ensemble"] = ModelLoadFailed("no such file")
        bench.does(bench.service.reload_built("encoder"))
        assert bench.control.loads == ["ensemble", "outer"]
        assert caplog.messages == ["model could not be loaded: no such file", "what has been built is not served: no such file"]
