"""The watchdog of loaded models' stubs, over a fake observer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from control_plane.triton.embedded.log_file import open_log
from control_plane.triton.embedded.watchdogs.load_watch import LoadWatch
from control_plane.triton.embedded.watchdogs.stub_watch import StubWatch
from control_plane.triton.embedded.watchdogs.stubs import Stub, StubObservation, Stubs, now_s

HOW = "was killed by SIGKILL"


class FakeStubs(Stubs):
    """Fake observer of stubs, which live and end as a test says."""

    def __init__(self) -> None:
        self.living: dict[int, Stub] = {}
        self.zombies: dict[int, str] = {}
        self.abandoned: set[str] = set()
        self.searches = 0
        self.killed: list[int] = []

    def begin(self, pid: int, model: str) -> Stub:
        self.living[pid] = Stub(pid, f"region-{pid}", f"{model}_0_{pid}", f"/state/repository/{model}/1/model.py", now_s())
        return self.living[pid]

    def observe(self) -> StubObservation:
        self.searches += 1
        return StubObservation(
            {pid: stub for pid, stub in self.living.items() if pid not in self.zombies}, dict(self.zombies), set(self.abandoned)
        )

    def end_of(self, stub: Stub) -> str | None:
        return self.zombies.get(stub.pid)

    def kill(self, stub: Stub) -> bool:
        self.killed.append(stub.pid)
        self.zombies[stub.pid] = HOW
        return True


class Lab:
    def __init__(self, folder: Path) -> None:
        log, self.output = open_log(folder / "triton.log")
        self.stubs = FakeStubs()
        self.loads = LoadWatch(log, self.stubs, self._answer)
        self.watch = StubWatch(self.stubs, self.loads)

    async def _answer(self, region: str) -> bool:
        return False

    async def load(self, pid: int, model: str) -> None:
        async def load(timeout_s: float) -> None:
            self.stubs.begin(pid, model)
            assert await self.dead() == []

        await self.loads.carry_out((model,), load, timeout_s=60.0)
        assert await self.dead() == []

    async def dead(self) -> list[tuple[str, str]]:
        return [(stub.model, how) for stub, how in await self.watch.look()]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path)
    lab.output.close()
    return lab


async def test_one_that_stays_a_zombie_has_died_and_that_is_told_once(lab: Lab) -> None:
    await lab.load(1, "a")
    await lab.load(2, "b")
    lab.stubs.zombies[1] = HOW
    assert await lab.dead() == []
    assert await lab.dead() == [("a", HOW)]
    assert await lab.dead() == []


async def test_one_that_triton_has_waited_for_was_unloaded(lab: Lab) -> None:
    await lab.load(1, "a")
    lab.stubs.zombies[1] = "ended with exit status 0"
    assert await lab.dead() == []
    del lab.stubs.zombies[1], lab.stubs.living[1]
    assert await lab.dead() == []
    assert await lab.dead() == []


async def test_one_of_a_load_under_way_is_left_to_that(lab: Lab) -> None:
    async def load(timeout_s: float) -> None:
        lab.stubs.begin(1, "a")
        lab.watch._searched_s = float("-inf")
        assert await lab.dead() == []
        lab.stubs.zombies[1] = HOW
        assert [await lab.dead() for _ in range(3)] == [[], [], []]

    await lab.loads.carry_out(("a",), load, timeout_s=60.0)
    assert [await lab.dead() for _ in range(3)] == [[], [], []], "it never served"


async def test_one_of_before_that_dies_while_its_model_is_loaded_again_is_told(lab: Lab) -> None:
    await lab.load(1, "a")

    async def load(timeout_s: float) -> None:
        lab.stubs.zombies[1] = HOW
        assert [await lab.dead() for _ in range(2)] == [[], [("a", HOW)]]

    lab.stubs.living[1] = Stub(1, "region-1", "a_0_1", "/state/repository/a/1/model.py", now_s() - 10.0)
    lab.watch._searched_s = float("-inf")
    assert await lab.dead() == []
    await lab.loads.carry_out(("a",), load, timeout_s=60.0)


async def test_it_searches_after_each_load_and_else_seldom(lab: Lab) -> None:
    for _ in range(5):
        await lab.dead()
    assert lab.stubs.searches == 1
    lab.stubs.begin(3, "called")  # models' code had it loaded
    lab.watch._searched_s -= 6.0
    await lab.dead()
    lab.stubs.zombies[3] = HOW
    assert [await lab.dead() for _ in range(2)] == [[], [("called", HOW)]]


async def test_those_that_we_end_are_not_told(lab: Lab) -> None:
    await lab.load(1, "a")
    await lab.load(2, "b")
    lab.watch.end(await lab.watch.of({"a"}))
    assert lab.stubs.killed == [1]
    assert [await lab.dead() for _ in range(3)] == [[], [], []]


async def test_one_that_dies_right_after_its_load_is_told_though_no_search_has_seen_it_alive(lab: Lab) -> None:
    async def load(timeout_s: float) -> None:
        lab.stubs.begin(1, "a")
        while not lab.loads._known:
            await asyncio.sleep(0.01)

    await lab.loads.carry_out(("a",), load, timeout_s=60.0)
    lab.stubs.zombies[1] = HOW
    assert [await lab.dead() for _ in range(3)] == [[], [("a", HOW)], []]


async def test_regions_of_what_it_finds_loaded_are_not_answered_in_for_as_long_as_they_are_there(lab: Lab) -> None:
    lab.stubs.begin(1, "a")
    await lab.dead()
    assert lab.loads.served == {"region-1"}
    lab.stubs.zombies[1] = HOW
    lab.watch._searched_s = float("-inf")
    lab.stubs.abandoned = {"region-1", "region-of-a-load"}
    await lab.dead()
    assert lab.loads.served == {"region-1"}
    lab.stubs.living.clear()
    lab.stubs.zombies.clear()
    lab.stubs.abandoned = {"region-of-a-load"}
    lab.watch._searched_s = float("-inf")
    await lab.dead()
    assert lab.loads.served == set()
