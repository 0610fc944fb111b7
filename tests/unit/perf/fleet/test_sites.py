"""The proxy over Tritons that are made up: what is loaded where, in which order, and that the budget holds at every moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.simulation.workload import Request
from perf.fleet.sites import Proxy
from perf.simulate.baselines import ConsistentHash, RoundRobin
from tests.aio import run_in_virtual_time

LOAD_S, UNLOAD_S, WORK_S = 2.0, 1.0, 0.1
BUDGET = 100


class FakeControl:
    """One Triton's: a load takes 2 s, and a model is gone a second after it was told to go."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes
        self._going: dict[str, float] = {}
        self.loaded: dict[str, bool] = {}
        self.loads: list[str] = []
        self.most = 0

    async def load(self, name: str, *, timeout_s: float) -> None:
        assert name not in self.loaded
        self.loaded[name] = False
        self.loads.append(name)
        self.most = max(self.most, sum(self._sizes[each] for each in self.loaded))
        await asyncio.sleep(LOAD_S)
        self.loaded[name] = True

    async def unload(self, name: str, *, timeout_s: float) -> None:
        assert self.loaded[name]
        self._going[name] = asyncio.get_running_loop().time() + UNLOAD_S

    async def index(self) -> list[ModelVersion]:
        now_s = asyncio.get_running_loop().time()
        for name, gone_s in list(self._going.items()):
            if now_s >= gone_s:
                del self._going[name], self.loaded[name]
        return [ModelVersion(name, "1", ModelState.READY, "") for name in self.loaded]


class Fleet:
    """Two Tritons behind a rule."""

    def __init__(self, rule: Any, sizes: dict[str, int], servers: int = 2) -> None:
        self.controls = [FakeControl(sizes) for _ in range(servers)]
        tritons: Any = [
            SimpleNamespace(url=f"http://{number}", upstream=SimpleNamespace(control=control))
            for number, control in enumerate(self.controls)
        ]
        self.proxy = Proxy(tritons, rule, budget_bytes=BUDGET, resident_bytes=sizes)

    async def ask(self, model: str, work_s: float = WORK_S) -> str:
        """Where it was served; the model must be there all the time."""
        async with self.proxy.serving(Request(0.0, model, 0.0)) as url:
            control = self.controls[int(url.removeprefix("http://"))]
            assert control.loaded[model]
            await asyncio.sleep(work_s)
            assert control.loaded[model]
        return url


@asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[Fleet]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(fleet.proxy.run())
        yield fleet
        task.cancel()


def scenario(fleet: Callable[[], Fleet], act: Callable[[Fleet], Any]) -> None:
    async def main() -> None:
        async with running(fleet()) as started:
            await act(started)

    run_in_virtual_time(main())


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_many_requests_for_a_model_share_one_load() -> None:
    async def act(fleet: Fleet) -> None:
        began_s = now_s()
        urls = await asyncio.gather(*(fleet.ask("m") for _ in range(5)))
        assert len(set(urls)) == 1
        assert now_s() - began_s == LOAD_S + WORK_S
        await fleet.ask("m")
        assert sorted(control.loads for control in fleet.controls) == [[], ["m"]]
        assert fleet.proxy.done.load_s == [LOAD_S]

    scenario(lambda: Fleet(ConsistentHash(), {"m": 10}), act)


def test_in_turns_every_server_loads_every_model() -> None:
    async def act(fleet: Fleet) -> None:
        assert {await fleet.ask("m") for _ in range(2)} == {"http://0", "http://1"}
        assert [control.loads for control in fleet.controls] == [["m"], ["m"]]

    scenario(lambda: Fleet(RoundRobin(), {"m": 10}), act)


def test_what_was_used_last_stays_and_the_budget_holds_at_every_moment() -> None:
    async def act(fleet: Fleet) -> None:
        for model in ("a", "b", "a", "c", "a", "b"):
            await fleet.ask(model)
        (control,) = fleet.controls
        assert control.loads == ["a", "b", "c", "b"]
        assert control.most <= BUDGET
        assert all(UNLOAD_S <= taken_s < UNLOAD_S + 0.1 for taken_s in fleet.proxy.done.unload_s)
        assert len(fleet.proxy.done.unload_s) == 2

    scenario(lambda: Fleet(RoundRobin(), {"a": 40, "b": 50, "c": 45}, servers=1), act)


def test_a_model_goes_when_its_last_request_has_been_answered_and_not_before() -> None:
    async def act(fleet: Fleet) -> None:
        began_s = now_s()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fleet.ask("a", work_s=10.0))
            await asyncio.sleep(LOAD_S + 1)
            tasks.create_task(fleet.ask("b"))
            await asyncio.sleep(1)
            tasks.create_task(fleet.ask("a"))  # too late for the one that is going: it comes again
        assert fleet.controls[0].loads == ["a", "b", "a"]
        assert fleet.controls[0].most <= BUDGET
        assert 3 * LOAD_S + 10 + 2 * UNLOAD_S < now_s() - began_s < 3 * LOAD_S + 11 + 2 * UNLOAD_S

    scenario(lambda: Fleet(RoundRobin(), {"a": 60, "b": 60}, servers=1), act)


def test_however_many_ask_at_once_all_are_answered_within_the_budget() -> None:
    sizes = {"a": 60, "b": 30, "c": 50, "d": 100, "e": 20}

    async def act(fleet: Fleet) -> None:
        await asyncio.gather(*(fleet.ask(model) for _ in range(20) for model in sizes))
        assert all(control.most <= BUDGET for control in fleet.controls)

    scenario(lambda: Fleet(RoundRobin(), sizes), act)
