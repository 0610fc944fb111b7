from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from threading import Event

import pytest

from control_plane.core.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    InvalidRequest,
    ModelLoadFailed,
    ModelNotFound,
    UpstreamUnavailable,
)
from control_plane.core.model import ModelOverride, ModelState, ModelVersion, ServedVariant
from tests.aio import changing, run, settle
from tests.unit.models.model_service_bench import TIMEOUT_S, Bench, Warm


class Counted(list[ModelVersion]):
    """An index that counts how often it is gone through."""

    times = 0

    def __iter__(self) -> Iterator[ModelVersion]:
        self.times += 1
        return super().__iter__()


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

    def test_goes_through_the_index_not_once_for_each_model(self) -> None:
        bench, index = Bench(), Counted(ModelVersion(f"m{number}", "1", ModelState.READY, "") for number in range(100))

        async def counted() -> list[ModelVersion]:
            return index

        bench.control.index = counted
        assert len(run(bench.service.list_models())) == 103
        assert index.times <= 3

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

    async def test_the_event_loop_goes_on_while_the_model_is_placed(self) -> None:
        bench = Bench()
        placed = bench.repository.places_when = Event()
        async with changing(bench.service), asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.service.load("a"))
            while not bench.repository.asked:
                await asyncio.sleep(0.001)
            placed.set()
        assert bench.repository.placed == ["a"]

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
