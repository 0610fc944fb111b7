"""BLS models, which call others while they answer: their fingerprints depend on everything that is loaded."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import DeadlineExceeded, ModelLoadFailed
from tests.unit.models.loaded_contents_bench import ALL, Bench


class TestCaller:
    """Model b is a BLS model that may call any other; it is a step of ensemble ee."""

    @pytest.fixture
    def bench(self) -> Bench:
        bench = Bench()
        bench.reading.callers = {"b"}
        return bench

    @pytest.mark.parametrize("loaded", ["a", "new"])
    def test_a_load_of_any_model_makes_it_unknown_meanwhile_and_another_one(self, bench: Bench, loaded: str) -> None:
        seen: list[set[str]] = []

        async def work() -> None:
            before = dict(bench.board.known)
            bench.control.on_load = lambda name: seen.append(bench.known)
            bench.reading.files[loaded] = "second"
            await bench.load_new(loaded)
            assert bench.known == ALL | {loaded}
            for name in ("b", "ee"):
                assert bench.board.known[name].digest != before[name].digest
            assert ("e" in seen[0]) == (bench.board.known["e"] is before["e"]) == (loaded == "new")

        bench.does(work)
        assert seen[0].isdisjoint({"b", "ee"})

    def test_its_own_load_touches_no_other(self, bench: Bench) -> None:
        seen: list[set[str]] = []

        async def work() -> None:
            bench.control.on_load = lambda name: seen.append(bench.known)
            bench.reading.files["a"] = "second"
            await bench.service.load("b")

        bench.does(work)
        assert seen == [{"a", "e"}]
        assert bench.known == ALL
        assert bench.reading.made_to_look_changed == []

    def test_a_load_that_fails_elsewhere_leaves_it_unknown_until_one_succeeds(self, bench: Bench) -> None:
        async def work() -> None:
            bench.reading.files["new"] = "first"
            bench.control.failures["new"] = ModelLoadFailed("x")
            await bench.fails(bench.load_new("new"))
            assert bench.known == {"a", "e"}
            bench.control.failures.clear()
            await bench.load_new("new")

        bench.does(work)
        assert bench.known == ALL | {"new"}

    def test_an_unload_makes_it_unknown_meanwhile_and_another_one(self, bench: Bench) -> None:
        async def work() -> None:
            before = bench.board.known["b"].digest
            bench.control.calls.hold()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(bench.service.unload("a"))
                while bench.control.calls.in_progress == 0:
                    await asyncio.sleep(0.001)
                assert bench.known == set()
                bench.control.calls.may_answer.set()
            assert bench.known == {"b"}
            assert bench.board.known["b"].digest != before
            await bench.service.load("a")
            assert bench.board.known["b"].digest == before

        bench.does(work)
        assert bench.known == ALL

    def test_an_unload_that_fails_leaves_it_unknown(self, bench: Bench) -> None:
        async def work() -> None:
            bench.control.failures["a"] = DeadlineExceeded("x")
            await bench.fails(bench.service.unload("a"))

        bench.does(work)
        assert bench.known == set()

    def test_is_known_after_loads_at_the_same_time(self, bench: Bench) -> None:
        async def work() -> None:
            bench.reading.files |= dict.fromkeys("cd", "first")
            await asyncio.gather(*map(bench.load_new, "acd"))

        bench.does(work)
        assert bench.known == ALL | {"c", "d"}
