"""What an unload and the end of Triton leave known of these models."""

from __future__ import annotations

import asyncio

from control_plane.core.errors import DeadlineExceeded
from control_plane.core.model import ModelState
from tests.unit.models.loaded_contents_bench import ALL, Bench


class TestUnload:
    def test_makes_it_unknown_with_the_ensembles_that_need_it_until_it_is_back(self) -> None:
        bench = Bench()

        async def work() -> None:
            await bench.service.unload("a")
            assert bench.known == {"b"}
            await bench.service.load("a")
            assert bench.known == ALL

        bench.does(work)
        assert bench.reading.made_to_look_changed == [], "after an unload Triton reads it anyway"

    def test_begins_when_nobody_knows_it_any_longer(self) -> None:
        bench = Bench()

        async def work() -> None:
            bench.control.calls.hold()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(bench.service.unload("a"))
                while bench.control.calls.in_progress == 0:
                    await asyncio.sleep(0.001)
                assert bench.known == {"b"}
                bench.control.calls.may_answer.set()

        bench.does(work)

    def test_an_ensemble_that_triton_does_not_bring_back_with_its_step_stays_unknown(self) -> None:
        bench = Bench()

        async def work() -> None:
            await bench.service.unload("a")
            bench.control.states["ee"] = ModelState.UNAVAILABLE
            await bench.service.load("a")

        bench.does(work)
        assert bench.known == {"a", "b", "e"}

    def test_with_dependents_keeps_what_triton_keeps(self) -> None:
        bench = Bench()
        bench.control.unloaded_with["ee"] = ["e"]

        async def work() -> None:
            before = dict(bench.board.known)
            await bench.service.unload("ee", unload_dependents=True)
            assert bench.known == {"a", "b"}
            assert bench.board.known["a"] is not before["a"]

        bench.does(work)

    def test_makes_it_unknown_even_while_triton_still_tells_its_configuration(self) -> None:
        bench = Bench()

        async def unload() -> None:
            async with bench.contents.unloading(bench.upstream, "a", False):
                pass

        bench.does(unload)
        assert bench.known == {"b"}

    def test_that_fails_leaves_it_unknown(self) -> None:
        bench = Bench()

        async def work() -> None:
            bench.control.failures["a"] = DeadlineExceeded("x")
            await bench.fails(bench.service.unload("a"))

        bench.does(work)
        assert bench.known == {"b"}

    def test_of_what_nobody_has_changes_nothing(self) -> None:
        bench = Bench()

        async def work() -> None:
            await bench.service.unload("nowhere")

        bench.does(work)
        assert bench.known == ALL


class TestTriton:
    def test_a_new_one_has_what_was_loaded_into_it(self) -> None:
        bench = Bench()

        async def work() -> None:
            before = dict(bench.board.known)
            await bench.service.unload("ee")
            bench.start_triton()
            await bench.begin()
            assert bench.known == set()
            bench.reading.files["e"] = "second"  # which it reads in any case
            await bench.service.load("e")
            assert bench.known == {"a", "e"}
            assert bench.board.known["a"] is not before["a"]
            assert bench.board.known["a"].digest == before["a"].digest

        bench.does(work)
        assert bench.reading.made_to_look_changed == []

    def test_a_load_into_the_last_one_makes_nothing_known(self) -> None:
        bench = Bench()

        async def work() -> None:
            last = bench.upstream
            last.control.calls.hold()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(bench.service.load("a"))
                while last.control.calls.in_progress == 0:
                    await asyncio.sleep(0.001)
                bench.start_triton()
                await bench.contents.restart(bench.upstream)
                last.control.calls.may_answer.set()

        bench.does(work)
        assert bench.known == set()

    def test_one_that_ends_after_a_load_says_no_more_of_it(self) -> None:
        bench = Bench()

        async def ends() -> None:
            async with bench.contents.loading(bench.upstream, "a", None):
                bench.control.states.clear()

        bench.does(ends)
        assert bench.known == {"b"}
