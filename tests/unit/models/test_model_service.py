from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from control_plane.core.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    InvalidRequest,
    ModelLoadFailed,
    ModelNotFound,
    UpstreamFailed,
    UpstreamUnavailable,
)
from control_plane.core.model import ModelOverride, ModelState, ServedVariant
from control_plane.models.model_service import LoadFailure, ModelService
from control_plane.triton.servers import Servers
from tests.aio import changing, run, settle
from tests.fakes import FakeRepository, FakeUpstream

T = TypeVar("T")
TIMEOUT_S = 77.0


class Bench:
    """Model service over models a, b and c; attached if `has_repository` is False."""

    def __init__(self, *load: str, has_repository: bool = True, restores: bool = True, tiers: Any = None, watch: Any = None) -> None:
        self.upstream, self.servers = FakeUpstream(), Servers()
        self.servers.up(self.upstream)
        self.repository = FakeRepository(models=["a", "b", "c"])
        self.service = ModelService(
            servers=self.servers,
            repository=self.repository if has_repository else None,
            load=list(load),
            load_timeout_s=TIMEOUT_S,
            restores=restores,
            tiers=tiers,
            watch=watch,
        )

    @property
    def control(self):  # type: ignore[no-untyped-def]
        return self.upstream.control

    def restart(self) -> list[str]:
        """Restore into a new Triton with nothing loaded, and return what was loaded into it."""
        self.upstream = FakeUpstream()
        self.servers.up(self.upstream)
        run(self.service.restore(self.upstream))
        return self.upstream.control.loads

    def does(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call while the service runs, as the running gateway would."""

        async def main() -> T:
            async with changing(self.service):
                return await call

        return run(main())

    def fails(self, call: Coroutine[Any, Any, object], error: type[ControlPlaneError]) -> str:
        with pytest.raises(error) as caught:
            self.does(call)
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

    def test_says_which_variant_is_served_where_the_backend_tells(self) -> None:
        bench = Bench()
        bench.upstream.metrics = b'tidegate_served_variant{model="b",reason="the fastest",variant="int8",version="1"} 1\n'
        assert [model.variant for model in run(bench.service.list_models())] == [None, ServedVariant("int8", "the fastest"), None]
        bench.upstream.metrics = UpstreamUnavailable("Triton was started without metrics")
        assert [model.variant for model in run(bench.service.list_models())] == [None, None, None]

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


class TestReasons:
    """Reasons of failed loads: in the log, and in the list until the model is loaded; Triton's index has only
    some of them.
    """

    FAILURE = ModelLoadFailed("load failed for model 'a': version 1 is at UNAVAILABLE state: Internal: ValueError: x")

    def reason(self, bench: Bench) -> str:
        return run(bench.service.get("a")).reason

    def test_why_a_load_failed_is_listed_and_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench()
        bench.control.failures["a"] = self.FAILURE
        bench.fails(bench.service.load("a"), ModelLoadFailed)
        assert self.reason(bench) == "Internal: ValueError: x"
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
            ("ERROR", f"model could not be loaded: {self.FAILURE}")
        ]

    def test_what_can_be_told_without_triton_is_and_it_is_not_asked(self) -> None:
        bench = Bench()
        bench.repository.unloadable["a"] = "1/model.py is missing"
        bench.fails(bench.service.load("a"), ModelLoadFailed)
        assert self.reason(bench) == "1/model.py is missing"
        assert bench.control.loads == []

    @pytest.mark.parametrize("change", ["load", "unload"])
    def test_it_is_over_with_the_next_load_that_succeeds_and_with_an_unload(self, change: str) -> None:
        bench = Bench()
        bench.control.failures["a"] = self.FAILURE
        bench.fails(bench.service.load("a"), ModelLoadFailed)
        bench.control.failures.clear()
        bench.does(getattr(bench.service, change)("a"))
        assert "ValueError" not in self.reason(bench)

    def test_of_one_that_serves_on_with_what_it_had_nothing_is_listed(self) -> None:
        bench = Bench()
        bench.does(bench.service.load("a"))
        bench.repository.unloadable["a"] = "1/model.py is missing"
        bench.fails(bench.service.load("a"), ModelLoadFailed)
        assert run(bench.service.get("a")).state is ModelState.READY
        assert self.reason(bench) == ""

    def test_what_is_no_fault_of_the_models_is_not_listed(self) -> None:
        bench = Bench()
        bench.control.failures["a"] = UpstreamUnavailable("Triton is gone")
        bench.fails(bench.service.load("a"), UpstreamUnavailable)
        assert self.reason(bench) == ""

    def test_where_a_fleet_loads_that_says_it(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench(restores=False)
        bench.control.failures["a"] = self.FAILURE
        bench.fails(bench.service.load("a"), ModelLoadFailed)
        assert caplog.records == []

    def test_of_thousands_of_names_that_callers_bring_along_the_latest_are_kept(self) -> None:
        bench = Bench()
        override = ModelOverride(config="{}", files={"file:1/model.py": b""})

        async def load_many() -> None:
            for number in range(1500):
                bench.control.failures[f"n{number}"] = self.FAILURE
                with pytest.raises(ModelLoadFailed):
                    await bench.service.load(f"n{number}", override)

        bench.does(load_many())
        assert len(bench.service._failures) == 1000


class TestAttached:
    """An attached Triton, run by others: its answers are all that is known."""

    @pytest.mark.parametrize(
        ("answer", "told"),
        [
            (ModelLoadFailed("Internal: x"), "Internal: x"),
            (
                ModelLoadFailed("failed to load 'a', failed to poll from model repository", upstream_code=13),
                "failed to load 'a', failed to poll from model repository; the log of that Triton says why",
            ),
            (
                DeadlineExceeded("RepositoryModelLoad: Deadline Exceeded"),
                "model 'a' was not loaded within 77 s (TIDEGATE_LOAD_TIMEOUT_S); that Triton goes on with it",
            ),
        ],
    )
    def test_where_that_is_not_all_it_is_said_who_knows(self, answer: ControlPlaneError, told: str) -> None:
        bench = Bench(has_repository=False)
        bench.control.failures["a"] = answer
        assert bench.fails(bench.service.load("a"), type(answer)) == told


class TestWatch:
    def test_a_load_is_carried_out_by_who_watches_over_it_with_the_steps_that_it_loads(self) -> None:
        watch = FakeWatch()
        bench = Bench(watch=watch)
        bench.repository.steps["a"] = ["step"]
        bench.does(bench.service.load("a"))
        assert watch.loads == [(["a", "step"], TIMEOUT_S)]
        assert bench.control.calls.timeouts_s == [TIMEOUT_S + 10]

    def test_what_is_brought_along_is_no_repositorys(self) -> None:
        watch = FakeWatch()
        bench = Bench(watch=watch)
        bench.does(bench.service.load("brought", ModelOverride(config="{}", files={"file:1/model.py": b""})))
        assert watch.loads == [(["brought"], TIMEOUT_S)]


class FakeWatch:
    """Fake `models/ports.LoadWatch` that does nothing but call the load."""

    def __init__(self) -> None:
        self.loads: list[tuple[list[str], float]] = []

    async def carry_out(self, models: Sequence[str], load: Callable[[float], Awaitable[None]], *, timeout_s: float) -> None:
        self.loads.append((list(models), timeout_s))
        await load(timeout_s + 10)


class TestLoad:
    def test_places_the_files_then_loads_and_tells_the_state(self) -> None:
        bench = Bench()
        bench.does(bench.service.load("a"))
        assert run(bench.service.get("a")).state is ModelState.READY
        assert bench.repository.placed == ["a"]
        assert bench.control.loads == ["a"]
        assert bench.control.calls.timeouts_s == [TIMEOUT_S]

    def test_again_is_a_reload_with_the_files_brought_up_to_date(self) -> None:
        bench = Bench()
        bench.does(bench.service.load("a"))
        bench.does(bench.service.load("a"))
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
        bench.does(bench.service.load("its-own"))
        assert bench.control.states["its-own"] is ModelState.READY
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

    def test_that_its_caller_abandons_goes_on_and_is_wanted(self) -> None:
        async def main(bench: Bench) -> None:
            bench.control.calls.hold()
            async with changing(bench.service), asyncio.TaskGroup() as tasks:
                task = tasks.create_task(bench.service.load("a"))
                await bench.control.calls.arrivals.get()
                task.cancel()
                await asyncio.wait([task])
                assert not bench.control.calls.cancelled.is_set()
                bench.control.calls.may_answer.set()
                await settle()

        bench = Bench()
        run(bench.service.restore(bench.upstream))
        run(main(bench))
        assert bench.restart() == ["a"]


class TestOverride:
    CONFIG = ModelOverride(config='{"max_batch_size":1}')
    FILES = ModelOverride(config="{}", files={"file:1/model.py": b"x"})

    def test_goes_to_triton_and_to_the_next_one(self) -> None:
        bench = Bench()
        bench.does(bench.service.load("a", self.CONFIG))
        assert (bench.control.overrides, bench.repository.placed) == ({"a": self.CONFIG}, ["a"])
        bench.restart()
        assert bench.control.overrides == {"a": self.CONFIG}

    def test_with_files_needs_no_repository_and_places_nothing(self) -> None:
        bench = Bench()
        bench.does(bench.service.load("nowhere", self.FILES))
        assert (bench.control.overrides, bench.repository.placed) == ({"nowhere": self.FILES}, [])
        bench.restart()
        assert bench.control.overrides == {"nowhere": self.FILES}

    def test_is_repeated_by_a_load_without_one(self) -> None:
        bench = Bench()
        bench.does(bench.service.load("a", self.CONFIG))
        bench.control.overrides.clear()
        bench.does(bench.service.load("a"))
        assert bench.control.overrides == {"a": self.CONFIG}
        bench.restart()
        assert bench.control.overrides == {"a": self.CONFIG}

    def test_ends_with_an_unload(self) -> None:
        bench = Bench()
        bench.does(bench.service.load("a", self.CONFIG))
        bench.does(bench.service.unload("a"))
        bench.does(bench.service.load("a"))
        bench.restart()
        assert bench.control.overrides == {"a": None}

    def test_that_fails_leaves_the_one_before(self) -> None:
        bench = Bench()
        bench.does(bench.service.load("a", self.CONFIG))
        bench.control.failures["a"] = ModelLoadFailed("x")
        bench.fails(bench.service.load("a", self.FILES), ModelLoadFailed)
        bench.restart()
        assert bench.control.overrides == {"a": self.CONFIG}


class TestUnload:
    def test_tells_the_state_after_it(self) -> None:
        bench = Bench()
        bench.does(bench.service.load("a"))
        bench.does(bench.service.unload("a"))
        assert run(bench.service.get("a")).state is ModelState.UNAVAILABLE
        assert bench.control.unloads == ["a"]

    def test_of_an_unknown_model_is_tritons_to_answer(self) -> None:
        bench = Bench()
        bench.does(bench.service.unload("nope"))
        assert bench.control.unloads == ["nope"]

    @pytest.mark.parametrize(("with_dependents", "left"), [(False, ["b", "c"]), (True, ["c"])])
    def test_with_dependents_wants_none_of_them_any_longer(self, with_dependents: bool, left: list[str]) -> None:
        bench = Bench("a", "b", "c")
        run(bench.service.restore(bench.upstream))
        bench.control.unloaded_with["a"] = ["b"]
        bench.does(bench.service.unload("a", unload_dependents=with_dependents))
        assert sorted(bench.restart()) == left

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
            await settle()
            assert bench.control.calls.in_progress == 3
            bench.control.calls.may_answer.set()

    async def test_cancelling_it_cancels_every_load(self) -> None:
        bench = Bench("a", "b")
        bench.control.calls.hold()
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(bench.service.restore(bench.upstream))
            await settle()
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


class Warm:
    """Fake `ModelTiers`, as far as loads need it: every model is warm, and pins are recorded."""

    def __init__(self) -> None:
        self.pinned_now: list[str] = []

    def names(self) -> list[str]:
        return ["a", "b"]

    async def ensure_warm(self, model: str, *, deadline_s: float) -> None: ...

    @contextmanager
    def pinned(self, model: str) -> Iterator[None]:
        self.pinned_now.append(model)
        try:
            yield
        finally:
            self.pinned_now.remove(model)


class TestFiles:
    def test_stay_here_as_long_as_the_model_is_loaded(self) -> None:
        warm = Warm()
        bench = Bench(tiers=warm)
        bench.does(bench.service.load("a"))
        assert warm.pinned_now == ["a"]
        bench.does(bench.service.unload("a"))
        assert warm.pinned_now == []

    def test_of_a_load_that_failed_may_be_replaced(self) -> None:
        warm = Warm()
        bench = Bench(tiers=warm)
        bench.control.failures["a"] = ModelLoadFailed("its weights are cut short")
        bench.fails(bench.service.load("a"), ModelLoadFailed)
        assert warm.pinned_now == []


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
