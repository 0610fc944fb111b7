from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from control_plane.domain.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    InvalidRequest,
    ModelLoadFailed,
    ModelNotFound,
    UpstreamFailed,
    UpstreamUnavailable,
)
from control_plane.domain.model import ModelState
from control_plane.services.models import LoadFailure, ModelService
from control_plane.services.servers import Servers
from tests.aio import run, settle
from tests.fakes import FakeRepository, FakeUpstream

TIMEOUT_S = 77.0


class Bench:
    """A service over models a, b and c; attached when `has_repository` is False."""

    def __init__(self, *load: str, has_repository: bool = True) -> None:
        self.upstream, self.servers = FakeUpstream(), Servers()
        self.servers.up(self.upstream)
        self.repository = FakeRepository(models=["a", "b", "c"])
        self.service = ModelService(
            servers=self.servers, repository=self.repository if has_repository else None, load=list(load), load_timeout_s=TIMEOUT_S
        )

    @property
    def control(self):  # type: ignore[no-untyped-def]
        return self.upstream.control

    def restart(self) -> list[str]:
        """A new Triton with nothing loaded; returns what is loaded into it."""
        self.upstream = FakeUpstream()
        self.servers.up(self.upstream)
        run(self.service.restore(self.upstream))
        return self.upstream.control.loads

    def fails(self, call: Coroutine[Any, Any, object], error: type[ControlPlaneError]) -> str:
        with pytest.raises(error) as caught:
            run(call)
        return str(caught.value)


class TestList:
    def test_joins_the_repository_and_tritons_index_by_name(self) -> None:
        bench = Bench()
        bench.control.states |= {"z": ModelState.READY, "b": ModelState.LOADING}
        bench.control.memory = {"z": 10}
        models = run(bench.service.list_models())
        assert [(model.name, model.state) for model in models] == [
            ("a", ModelState.UNAVAILABLE),
            ("b", ModelState.LOADING),
            ("c", ModelState.UNAVAILABLE),
            ("z", ModelState.READY),
        ]
        assert [model.memory_bytes for model in models] == [None, None, None, 10]

    def test_of_an_attached_triton_is_its_index(self) -> None:
        bench = Bench(has_repository=False)
        bench.control.states["z"] = ModelState.READY
        assert [model.name for model in run(bench.service.list_models())] == ["z"]

    def test_needs_a_triton(self) -> None:
        bench = Bench()
        bench.servers.down("Triton is starting")
        bench.fails(bench.service.list_models(), UpstreamUnavailable)

    def test_get_finds_one(self) -> None:
        bench = Bench()
        assert run(bench.service.get("b")).name == "b"
        assert "no model 'nope' in any repository" in bench.fails(bench.service.get("nope"), ModelNotFound)


class TestLoad:
    def test_places_the_files_then_loads_and_tells_the_state(self) -> None:
        bench = Bench()
        assert run(bench.service.load("a")).state is ModelState.READY
        assert bench.repository.placed == ["a"]
        assert bench.control.loads == ["a"]
        assert bench.control.calls.timeouts_s == [TIMEOUT_S]

    def test_again_is_a_reload_with_the_files_brought_up_to_date(self) -> None:
        bench = Bench()
        run(bench.service.load("a"))
        run(bench.service.load("a"))
        assert bench.repository.placed == ["a", "a"]
        assert bench.control.loads == ["a", "a"]

    @pytest.mark.parametrize("name", ["", "a/b", "../a", "a b", "a\n", "a\x00", "\u00e4", "x" * 256, "*"])
    def test_a_name_that_cannot_be_one_reaches_nobody(self, name: str) -> None:
        bench = Bench()
        bench.fails(bench.service.load(name), InvalidRequest)
        bench.fails(bench.service.unload(name), InvalidRequest)
        assert (bench.repository.placed, bench.control.loads, bench.control.unloads) == ([], [], [])

    def test_a_model_that_no_repository_has_is_not_asked_of_triton(self) -> None:
        bench = Bench()
        bench.fails(bench.service.load("nope"), ModelNotFound)
        assert bench.control.loads == []

    def test_into_an_attached_triton_places_nothing(self) -> None:
        bench = Bench(has_repository=False)
        assert run(bench.service.load("its-own")).state is ModelState.READY
        assert bench.repository.placed == []

    @pytest.mark.parametrize("error", [ModelLoadFailed("x"), DeadlineExceeded("x"), UpstreamUnavailable("x")])
    def test_that_fails_is_told_and_not_wanted(self, error: ControlPlaneError) -> None:
        bench = Bench()
        run(bench.service.restore(bench.upstream))
        bench.control.failures["a"] = error
        bench.fails(bench.service.load("a"), type(error))
        assert bench.restart() == []

    def test_that_fails_leaves_a_model_wanted_that_was_wanted_before(self) -> None:
        bench = Bench("a")
        run(bench.service.restore(bench.upstream))
        bench.control.failures["a"] = ModelLoadFailed("x")
        bench.fails(bench.service.load("a"), ModelLoadFailed)
        assert bench.restart() == ["a"]

    def test_that_its_caller_abandons_is_not_wanted(self) -> None:
        async def main(bench: Bench) -> None:
            bench.control.calls.hold()
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(bench.service.load("a"))
                await bench.control.calls.arrivals.get()
                task.cancel()
            assert bench.control.calls.cancelled.is_set()

        bench = Bench()
        run(bench.service.restore(bench.upstream))
        run(main(bench))
        assert bench.restart() == []


class TestUnload:
    def test_tells_the_state_after_it(self) -> None:
        bench = Bench()
        run(bench.service.load("a"))
        assert run(bench.service.unload("a")).state is ModelState.UNAVAILABLE
        assert bench.control.unloads == ["a"]

    def test_of_an_unknown_model_is_not_found_although_triton_would_say_ok(self) -> None:
        bench = Bench()
        bench.fails(bench.service.unload("nope"), ModelNotFound)
        assert bench.control.unloads == []

    def test_that_fails_leaves_the_model_wanted(self) -> None:
        bench = Bench("a")
        run(bench.service.restore(bench.upstream))
        bench.control.failures["a"] = UpstreamUnavailable("x")
        bench.fails(bench.service.unload("a"), UpstreamUnavailable)
        assert bench.restart() == ["a"]


class TestRestore:
    def test_at_start_loads_what_was_asked_for(self) -> None:
        bench = Bench("a", "c")
        assert run(bench.service.restore(bench.upstream)) == []
        assert sorted(bench.control.loads) == ["a", "c"]
        assert bench.repository.placed[0] == "*"

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
        assert [(record.levelname, record.model) for record in caplog.records] == [  # type: ignore[attr-defined]
            ("INFO", "a"),
            ("ERROR", "b"),
            ("ERROR", "c"),
            ("ERROR", "nope"),
        ]
        assert failures == [LoadFailure("b", "bad weights"), LoadFailure("c", "not built"), LoadFailure("nope", "no model 'nope'")]
        assert run(bench.service.get("a")).state is ModelState.READY

    def test_loads_at_the_same_time(self) -> None:
        async def main() -> None:
            bench = Bench("a", "b", "c")
            bench.control.calls.hold()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(bench.service.restore(bench.upstream))
                await settle()
                assert bench.control.calls.in_progress == 3
                bench.control.calls.may_answer.set()

        run(main())

    def test_cancelling_it_cancels_every_load(self) -> None:
        async def main() -> None:
            bench = Bench("a", "b")
            bench.control.calls.hold()
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(bench.service.restore(bench.upstream))
                await settle()
                task.cancel()
            assert task.cancelled()
            assert bench.control.calls.in_progress == 0

        run(main())

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
        run(bench.service.load("c"))
        run(bench.service.unload("a"))
        assert sorted(bench.restart()) == ["b", "c"]
        assert sorted(bench.restart()) == ["b", "c"]

    def test_a_star_does_not_bring_back_what_was_unloaded(self) -> None:
        bench = Bench("*")
        run(bench.service.restore(bench.upstream))
        run(bench.service.unload("a"))
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
