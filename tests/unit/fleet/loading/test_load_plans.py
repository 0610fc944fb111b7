"""`LoadPlans` over an obedient fake Triton in virtual time; `test_leaders_interleaved` runs everything at
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelLoadFailed, Overloaded, UpstreamUnavailable
from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.fleet import ModelFacts, Server
from control_plane.fleet.loading.load_plans import LoadPlans, PlanLimits
from control_plane.models.domain.description import ModelSpec
from control_plane.triton.ports import ModelControl
from tests.aio import settle
from tests.fakes.triton.server_models import PlainModels

pytestmark = pytest.mark.virtual_time

READY, LOADING, UNLOADING = ModelState.READY, ModelState.LOADING, ModelState.UNLOADING
BYTES = {"a": 4, "b": 4, "c": 4, "m": 4}
LIMITS = PlanLimits(load_timeout_s=30.0, release_timeout_s=10.0)


@dataclass
class UpstreamClient:
    """The part of `triton/ports.ModelControl` that plans need; loads and drains take as long as the test
    says."""

    states: dict[str, ModelState] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    load_s: float = 1.0
    drain_s: float = 0.5
    seen_s: float = 0.0
    """How long a load is not in the index yet."""
    fails: ControlPlaneError | None = None
    looks: int = 0

    async def index(self) -> list[ModelVersion]:
        await asyncio.sleep(0)
        self.looks += 1
        return [ModelVersion(name, "1", state, "") for name, state in self.states.items()]

    async def unload(self, name: str) -> None:
        self.said.append(f"unload {name}")
        self.states[name] = UNLOADING
        asyncio.get_running_loop().call_later(self.drain_s, self.states.pop, name)

    async def load(self, name: str) -> None:
        self.said.append(f"load {name}")
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.call_later(self.seen_s, self.states.__setitem__, name, LOADING)
        loop.call_later(self.seen_s + self.load_s, self._end, name, ended)
        await ended.wait()
        if self.fails is not None:
            raise self.fails

    def _end(self, name: str, ended: asyncio.Event) -> None:
        self.states[name] = READY
        if self.fails is not None:
            del self.states[name]
        ended.set()


class Plans(LoadPlans):
    """Load plans with a fake Triton, and a lease that the test may take away."""

    def __init__(self, triton: UpstreamClient, budget: int = 10) -> None:
        self.models = PlainModels(triton.load, triton.unload)
        self.token: int | None = 1
        self.indices: list[list[ModelVersion]] = []
        super().__init__(
            Server("s", budget),
            cast("ModelControl", triton),
            self.models,
            require=self._own,
            bytes_of=BYTES.__getitem__,
            on_index=self.indices.append,
            limits=LIMITS,
            now_s=asyncio.get_running_loop().time,
        )

    async def raise_up(self, name: str, *parts: str) -> None:
        """Load a model anew by `LoadPlans.repair`."""
        await self.repair(facts(name), name, parts=parts)

    async def bring(self, name: str, *victims: str, before: Callable[[], Awaitable[None]] | None = None) -> None:
        """Load a model; `before` prepares the load."""
        if before is not None:
            self.models.prepare = before
        await self.load(facts(name), victims)

    def _own(self) -> int:
        if self.token is None:
            raise UpstreamUnavailable("another process owns the fleet")
        return self.token


def facts(name: str) -> ModelFacts:
    return ModelFacts(ModelSpec(name), BYTES[name], load_s=1.0, service_s=0.0)


async def test_victims_are_gone_before_it_loads() -> None:
    triton = UpstreamClient({"a": READY, "b": READY}, drain_s=7.0)
    plans, now_s = Plans(triton), asyncio.get_running_loop().time
    await plans.bring("m", "a")
    assert (triton.said, triton.states) == (["unload a", "load m"], {"b": READY, "m": READY})
    assert 8.0 <= now_s() <= 8.6
    assert triton.looks < 30  # polling slows down
    assert [line.name for line in plans.indices[-1]] == ["b", "m"]


async def test_plans_of_one_server_wait_for_each_other() -> None:
    triton = UpstreamClient({"a": READY})
    plans = Plans(triton)
    await asyncio.gather(plans.bring("m"), plans.bring("b", "a"), plans.unload("m"))
    assert triton.said == ["load m", "unload a", "load b", "unload m"]
    assert triton.states == {"b": READY}


async def test_what_is_there_or_on_its_way_is_not_loaded_again() -> None:
    triton = UpstreamClient({"m": READY, "a": LOADING})
    asyncio.get_running_loop().call_later(3.0, triton.states.__setitem__, "a", READY)
    await Plans(triton).bring("m")
    await Plans(triton).bring("a")
    assert (triton.said, triton.states["a"]) == ([], READY)


async def test_a_load_of_somebody_else_is_waited_for_until_it_hangs() -> None:
    triton, now_s = UpstreamClient({"a": LOADING}), asyncio.get_running_loop().time
    plans = Plans(triton)
    await plans.bring("m")
    assert LIMITS.load_timeout_s < now_s() < LIMITS.load_timeout_s + 3.0
    began_s = now_s()
    with pytest.raises(Overloaded):  # its memory is taken all the same
        await plans.bring("b")
    await plans.bring("b", "m")
    assert now_s() < began_s + 3.0  # and nobody waits for it twice
    assert triton.said == ["load m", "unload m", "load b"]
    with pytest.raises(DeadlineExceeded, match="the load of model 'a' on server 's' hangs"):
        await plans.bring("a")


async def test_a_load_of_somebody_else_that_ends_in_nothing_is_told() -> None:
    triton = UpstreamClient({"m": LOADING})
    asyncio.get_running_loop().call_later(1.0, triton.states.pop, "m")
    with pytest.raises(ModelLoadFailed, match="model 'm' is not on server 's' after its load has ended"):
        await Plans(triton).bring("m")


async def test_what_comes_while_files_are_placed_is_seen_before_triton_is_asked() -> None:
    triton = UpstreamClient()

    async def others_come() -> None:
        triton.states |= {"a": READY, "b": READY}

    with pytest.raises(Overloaded, match=r"model 'm' does not fit on server 's' any more: 2 bytes are missing"):
        await Plans(triton).bring("m", before=others_come)
    assert triton.said == []


@pytest.mark.parametrize("when", ["before it begins", "while a victim leaves", "while files are placed"])
async def test_who_is_not_the_leader_any_more_begins_nothing(when: str) -> None:
    triton = UpstreamClient({"a": READY, "b": READY})
    plans = Plans(triton)

    async def lose() -> None:
        plans.token = None

    if when == "before it begins":
        await lose()
    elif when == "while a victim leaves":
        asyncio.get_running_loop().call_later(0.2, setattr, plans, "token", None)
    with pytest.raises(UpstreamUnavailable, match="another process owns the fleet"):
        await plans.bring("m", "a", before=lose if when == "while files are placed" else None)
    assert triton.said == ([] if when == "before it begins" else ["unload a"])
    with pytest.raises(UpstreamUnavailable):
        await plans.unload("b")


async def test_an_index_of_before_another_lease_does_not_count() -> None:
    triton = UpstreamClient()
    plans = Plans(triton)

    class Late(UpstreamClient):
        async def index(self) -> list[ModelVersion]:
            found = await super().index()
            # The look right before the load: meanwhile another process was the leader, and loaded.
            if self.looks == 2:
                self.states |= {"a": LOADING}
                plans.token = 2
                asyncio.get_running_loop().call_later(5.0, self.states.__setitem__, "a", READY)
            return found

    triton = Late()
    plans._control, plans._models = cast("ModelControl", triton), PlainModels(triton.load, triton.unload)
    await plans.bring("m")
    assert asyncio.get_running_loop().time() > 6.0


async def test_requests_that_do_not_end_hold_up_their_models_successor_for_a_time() -> None:
    triton = UpstreamClient({"a": READY, "b": READY}, drain_s=1000.0)
    with pytest.raises(Overloaded, match="server 's': waited 10 s for 'a' to be released"):
        await Plans(triton).bring("m", "a")
    assert triton.said == ["unload a"]


async def test_an_index_that_does_not_come_is_no_fault_of_the_model() -> None:
    class Frozen(UpstreamClient):
        async def index(self) -> list[ModelVersion]:
            raise DeadlineExceeded("RepositoryIndex: Deadline Exceeded")

    with pytest.raises(UpstreamUnavailable, match="server 's' does not list its models: RepositoryIndex"):
        await Plans(Frozen()).bring("m")


async def test_its_own_requests_that_do_not_end_are_its_own_fault() -> None:
    triton = UpstreamClient({"m": READY}, drain_s=1000.0)
    with pytest.raises(DeadlineExceeded, match="waited 10 s for 'm' to be released"):
        await Plans(triton).bring("m", "m")


@pytest.mark.parametrize("error", [ModelLoadFailed("no such file"), UpstreamUnavailable("gone"), DeadlineExceeded("too long")])
async def test_a_load_that_fails_is_told_and_the_next_plan_begins_anew(error: ControlPlaneError) -> None:
    triton = UpstreamClient(fails=error)
    plans = Plans(triton)
    with pytest.raises(type(error), match=str(error)):
        await plans.bring("m")
    triton.fails = None
    await plans.bring("a")
    assert triton.states == {"a": READY}


@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.4, 0.6, 0.9, 1.3, 1.7])
async def test_cancelled_anywhere_the_next_plan_knows_what_is_under_way(after_s: float) -> None:
    triton = UpstreamClient({"a": READY, "b": READY}, seen_s=0.3)
    plans = Plans(triton)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(after_s):
            await plans.bring("m", "a")
    began = "load m" in triton.said
    await settle()
    await plans.bring("c", *(["a"] if "a" in triton.states else []), *(["m"] if began else []))
    assert triton.states == {"b": READY, "c": READY}
    assert triton.said[-1] == "load c"
    assert triton.said[-2] == ("unload m" if began else "unload a")


async def test_a_plan_that_is_cancelled_while_its_load_is_prepared_does_not_load_beside_the_next() -> None:
    triton = UpstreamClient()
    plans = Plans(triton)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await plans.bring("m", before=lambda: asyncio.sleep(1.0))
    await plans.bring("a")
    await asyncio.sleep(10.0)
    assert triton.said == ["load a"]


async def test_a_call_that_never_arrived_is_forgotten() -> None:
    triton = UpstreamClient(seen_s=1e5)
    plans, now_s = Plans(triton, budget=4), asyncio.get_running_loop().time
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await plans.bring("m")
    with pytest.raises(Overloaded):
        await plans.bring("a")
    await asyncio.sleep(LIMITS.call_visible_after_s)
    triton.seen_s = 0.0
    await plans.bring("a")
    assert now_s() < 10.0


async def test_unloading_waits_until_the_memory_is_free() -> None:
    triton, now_s = UpstreamClient({"a": READY, "b": LOADING}, drain_s=3.0), asyncio.get_running_loop().time
    asyncio.get_running_loop().call_later(2.0, triton.states.__setitem__, "b", READY)
    plans = Plans(triton)
    await plans.unload("never there")
    await plans.unload("a")
    assert now_s() >= 3.0
    await plans.unload("b")
    assert (triton.said, triton.states) == (["unload a", "unload b"], {})


class Stuck(UpstreamClient):
    """Triton that never says that a model with a dead stub is gone."""

    async def unload(self, name: str) -> None:
        self.said.append(f"unload {name}")
        self.states[name] = UNLOADING


class TestDeadProcesses:
    async def test_one_is_loaded_anew_though_triton_never_gives_it_up(self) -> None:
        triton, now_s = Stuck({"a": READY, "m": READY}), asyncio.get_running_loop().time
        plans = Plans(triton)
        await plans.raise_up("m")
        assert (triton.said, triton.states) == (["unload m", "load m"], {"a": READY, "m": READY})
        assert now_s() < 1.5

    async def test_an_ensembles_steps_hold_no_memory_either(self) -> None:
        triton = Stuck({"a": READY, "b": UNLOADING, "m": READY})
        await Plans(triton).raise_up("m", "b")
        assert triton.said == ["unload m", "load m"]

    async def test_afterwards_what_unloads_counts_again(self) -> None:
        triton = Stuck({"a": READY, "b": READY})
        plans = Plans(triton)
        await plans.raise_up("b")
        with pytest.raises(Overloaded, match="waited 10 s for 'b' to be released"):
            await plans.bring("m", "b")
        assert triton.said == ["unload b", "load b", "unload b"]


async def test_one_that_is_found_to_be_larger_before_it_begins_is_not_loaded_beyond_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    triton, model = UpstreamClient({"a": READY, "c": UNLOADING}), facts("m")
    asyncio.get_running_loop().call_later(2.0, triton.states.pop, "c")

    def grow() -> None:
        model.resident_bytes = 9
        monkeypatch.setitem(BYTES, "m", 9)

    asyncio.get_running_loop().call_later(1.0, grow)
    plans = Plans(triton)
    with pytest.raises(Overloaded, match="does not fit on server 's' any more: 3 bytes are missing"):
        await plans.load(model)
    assert not triton.said
