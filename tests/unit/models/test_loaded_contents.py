"""When fingerprints are known: with models a and b, an ensemble e of a, and an ensemble ee of e and b."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress

import pytest

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelLoadFailed, UpstreamUnavailable
from control_plane.core.fingerprint import LoadedConfig, ModelContents
from control_plane.core.model import ModelOverride
from tests.aio import settle
from tests.unit.models.loaded_contents_bench import ALL, FILES, STEPS, Bench


class TestDependents:
    def test_are_all_that_need_it_and_itself(self) -> None:
        bench = Bench()
        bench.does(settle)
        assert bench.contents.dependents_of("a") == {"a", "e", "ee"}
        assert bench.contents.dependents_of("ee") == {"ee"}
        assert bench.contents.dependents_of("c") == set()


class TestLoad:
    def test_leaves_threads_to_others_while_files_are_read(self) -> None:
        bench, read = Bench(), Bench().reading.read
        names, turn, now, most = [f"m{number}" for number in range(8)], threading.Lock(), 0, 0

        def read_for_a_while(name: str, override: ModelOverride | None) -> ModelContents:
            nonlocal now, most
            with turn:
                now += 1
                most = max(most, now)
            time.sleep(0.05)
            with turn:
                now -= 1
            return read("a", override)

        async def work() -> None:
            bench.reading.read = read_for_a_while  # type: ignore[method-assign]
            await asyncio.gather(*(bench.load_new(name) for name in names))

        bench.does(work)
        assert 1 < most <= 4

    def test_makes_a_model_known_and_its_steps_and_what_needs_them(self) -> None:
        bench = Bench()
        bench.does(settle)
        assert bench.known == ALL
        assert bench.reading.made_to_look_changed == []

    def test_begins_when_nobody_knows_the_model_any_longer_nor_what_needs_it(self) -> None:
        bench = Bench()
        seen: list[set[str]] = []

        async def work() -> None:
            bench.control.on_load = lambda name: seen.append(bench.known)
            await bench.service.load("a")

        bench.does(work)
        assert seen == [{"b"}]
        assert bench.known == ALL

    def test_of_an_ensemble_makes_its_steps_and_other_ensembles_of_them_unknown_meanwhile(self) -> None:
        bench = Bench()
        seen: list[set[str]] = []

        async def work() -> None:
            bench.control.on_load = lambda name: seen.append(bench.known)
            await bench.service.load("e")

        bench.does(work)
        assert seen == [{"b"}]

    def test_of_the_same_again_is_another_fingerprint_with_the_same_digest(self) -> None:
        bench = Bench()

        async def work() -> None:
            before = dict(bench.board.known)
            await bench.service.load("a")
            for name in ("a", "e", "ee"):
                assert bench.board.known[name] is not before[name]
                assert bench.board.known[name].digest == before[name].digest
            assert bench.board.known["b"] is before["b"]

        bench.does(work)
        assert bench.reading.made_to_look_changed == []

    @pytest.mark.parametrize("loaded", ["a", "e", "ee"])
    def test_of_other_files_is_another_digest_also_of_the_ensembles_and_triton_is_made_to_read_them(self, loaded: str) -> None:
        bench = Bench()

        async def work() -> None:
            before = {name: known.digest for name, known in bench.board.known.items()}
            bench.reading.files["a"] = "second"
            await bench.service.load(loaded)
            after = {name: known.digest for name, known in bench.board.known.items()}
            assert {name for name in ALL if before[name] != after[name]} == {"a", "e", "ee"}

        bench.does(work)
        assert bench.reading.made_to_look_changed == ["a"]

    def test_of_another_configuration_is_another_digest(self) -> None:
        bench = Bench()

        async def work() -> None:
            before = bench.board.known["a"].digest
            bench.control.configs["a"] = LoadedConfig(b"instances: 2")
            await bench.service.load("a")
            assert bench.board.known["a"].digest != before

        bench.does(work)

    def test_is_not_certain_when_its_files_change_meanwhile_and_the_next_one_is(self) -> None:
        bench = Bench()

        async def work() -> None:
            bench.control.on_load = lambda name: bench.reading.files.update(a="while loading")
            await bench.service.load("a")
            assert bench.known == {"b"}
            await bench.service.load("a")
            assert bench.known == ALL

        bench.does(work)
        assert bench.reading.made_to_look_changed == ["a"], "Triton may have read the files before they changed"

    def test_is_not_certain_when_tritons_configuration_looks_elsewhere_than_the_file(self) -> None:
        bench = Bench()

        async def work() -> None:
            bench.control.configs["a"] = LoadedConfig(b"", parameters=frozenset({"../weights"}))
            await bench.service.load("a")
            assert bench.known == {"b"}
            bench.reading.parameters["a"] = frozenset({"../weights"})
            await bench.service.load("a")
            assert bench.known == ALL

        bench.does(work)

    def test_of_what_cannot_be_read_is_not_certain(self) -> None:
        bench = Bench()

        async def work() -> None:
            del bench.reading.files["a"]
            await bench.service.load("a")

        bench.does(work)
        assert bench.known == {"b"}

    def test_of_an_ensemble_that_fails_changes_nothing_for_steps_that_have_not_changed(self) -> None:
        bench = Bench()

        async def work() -> None:
            before = dict(bench.board.known)
            bench.reading.files["b"] = "second"
            bench.control.failures["ee"] = ModelLoadFailed("x")
            await bench.fails(bench.service.load("ee"))
            assert bench.known == {"a", "e"}
            assert bench.board.known["a"] is not before["a"]
            assert bench.board.known["a"].digest == before["a"].digest

        bench.does(work)

    @pytest.mark.parametrize(
        ("failing", "error"), [("a", ModelLoadFailed("x")), ("ee", DeadlineExceeded("x")), ("ee", UpstreamUnavailable("x"))]
    )
    def test_that_fails_leaves_all_it_may_have_changed_unknown_until_one_succeeds(self, failing: str, error: ControlPlaneError) -> None:
        bench = Bench()

        async def work() -> None:
            bench.control.failures[failing] = error
            await bench.fails(bench.service.load(failing))
            assert bench.known == ({"b"} if failing == "a" else set())
            bench.control.failures.clear()
            await bench.service.load("ee")
            assert bench.known == ALL

        bench.does(work)
        assert sorted(bench.reading.made_to_look_changed) == (["a"] if failing == "a" else sorted(ALL))

    def test_whose_caller_leaves_is_seen_through(self) -> None:
        bench = Bench()

        async def work() -> None:
            bench.control.calls.hold()
            async with asyncio.TaskGroup() as tasks:
                loading = tasks.create_task(bench.service.load("a"))
                await bench.upstream.control.calls.arrivals.get()
                while bench.control.calls.in_progress == 0:
                    await asyncio.sleep(0.001)
                loading.cancel()
            assert bench.known == {"b"}
            bench.control.calls.may_answer.set()
            while bench.known != ALL:
                await asyncio.sleep(0.001)

        bench.does(work)

    def test_that_is_itself_cancelled_leaves_the_model_unknown_and_blocks_nobody(self) -> None:
        bench = Bench()

        async def work() -> None:
            bench.control.calls.hold()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await bench.load_new("a")
            assert bench.known == {"b"}
            bench.control.calls.may_answer.set()
            await bench.service.load("a")
            assert bench.known == ALL

        bench.does(work)

    def test_that_is_given_up_before_triton_is_asked_leaves_the_model_unknown(self) -> None:
        bench = Bench()

        async def give_up() -> None:
            async with bench.service.prepared("a"):
                assert bench.known == {"b"}
                raise UpstreamUnavailable("the lease is lost")

        async def work() -> None:
            asked = list(bench.control.loads)
            await bench.fails(give_up())
            assert (bench.known, bench.control.loads) == ({"b"}, asked)
            await bench.service.load("a")
            assert bench.known == ALL

        bench.does(work)

    def test_of_models_that_share_nothing_go_on_at_the_same_time_others_follow_each_other(self) -> None:
        bench = Bench()

        async def work() -> None:
            bench.control.calls.hold()
            async with asyncio.TaskGroup() as tasks:
                for name in ("a", "b", "e"):
                    tasks.create_task(bench.service.load(name))
                while bench.control.calls.in_progress < 2:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.05)
                assert (bench.control.calls.in_progress, bench.known) == (2, set())
                bench.control.calls.may_answer.set()
            assert bench.known == ALL

        bench.does(work)

    def test_takes_in_the_steps_that_its_configuration_has_when_it_is_its_turn(self) -> None:
        bench = Bench()
        seen: list[set[str]] = []

        async def work() -> None:
            bench.control.calls.hold()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(bench.load_new("e"))
                while bench.control.calls.in_progress == 0:
                    await asyncio.sleep(0.001)
                tasks.create_task(bench.service.load("e"))
                await asyncio.sleep(0.02)
                bench.reading.steps = {**STEPS, "e": ["a", "b"]}
                bench.control.configs["e"] = LoadedConfig(b"", steps=frozenset("ab"))
                bench.control.on_load = lambda name: seen.append(bench.known)
                bench.control.calls.may_answer.set()

        bench.does(work)
        assert seen[-1] == set(), "b is a step of it by now"
        assert bench.known == ALL

    @pytest.mark.parametrize("fails", [False, True])
    def test_what_becomes_a_step_meanwhile_may_have_been_loaded_too(self, fails: bool) -> None:
        bench = Bench()

        async def work() -> None:
            bench.control.on_load = lambda name: setattr(bench.reading, "steps", {**STEPS, "e": ["a", "b"]})
            if fails:
                bench.control.failures["e"] = ModelLoadFailed("x")
                await bench.fails(bench.service.load("e"))
            else:
                await bench.service.load("e")

        bench.does(work)
        assert bench.known == {"a"}


class TestOverride:
    def test_files_that_are_brought_are_what_it_consists_of(self) -> None:
        bench = Bench()

        async def work() -> None:
            before = bench.board.known["a"].digest
            await bench.service.unload("a")
            await bench.service.load("a", FILES)
            brought = bench.board.known["a"].digest
            assert brought != before
            bench.reading.files["a"] = "second"
            await bench.service.load("a")
            assert bench.board.known["a"].digest == brought

        bench.does(work)
        assert bench.reading.made_to_look_changed == []

    def test_files_brought_over_other_ones_may_have_been_ignored(self) -> None:
        bench = Bench()

        async def work() -> None:
            for files in (FILES, ModelOverride("{}", {"file:1/model.py": b"y"})):
                await bench.service.load("a", files)
                assert bench.known == {"b"}
            await bench.service.unload("a")
            await bench.service.load("a", FILES)
            assert bench.known == ALL

        bench.does(work)

    def test_after_a_load_of_an_ensemble_nobody_knows_whose_files_its_step_has(self) -> None:
        bench = Bench()

        async def work() -> None:
            own = bench.board.known["a"].digest
            await bench.service.unload("a")
            await bench.service.load("a", FILES)
            await bench.service.load("ee")
            assert bench.known == {"b"}
            await bench.service.unload("a")
            await bench.service.load("ee")
            assert bench.known == ALL
            assert bench.board.known["a"].digest == own

        bench.does(work)

    def test_a_configuration_is_kept_through_the_load_of_an_ensemble(self) -> None:
        bench = Bench()

        async def work() -> None:
            bench.control.configs["a"] = LoadedConfig(b"override")
            await bench.service.load("a", ModelOverride(config="{}"))
            await bench.service.load("ee")
            assert bench.known == ALL

        bench.does(work)
