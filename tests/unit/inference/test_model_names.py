"""Known model names: those in the index, in a fleet's descriptions or of models that answered; never made-up
ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.model import UNKNOWN_MODEL, ModelState
from control_plane.inference.model_names import ModelNames
from control_plane.protocols.http1 import make_answer
from control_plane.triton.compute_time import ComputeTime
from control_plane.triton.servers import Servers
from tests.fakes import FakeUpstream

pytestmark = pytest.mark.virtual_time


class Bench:
    def __init__(self) -> None:
        self.servers, self.upstream = Servers(), FakeUpstream()
        self.servers.up(self.upstream)
        self.upstream.control.states = {"a": ModelState.READY, "gone": ModelState.UNAVAILABLE}
        self.models = ModelNames(self.servers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Context manager: within the block `ModelNames.run` is running."""
        running = asyncio.get_running_loop().create_task(self.models.run())
        await asyncio.sleep(0.01)
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])


async def test_models_of_the_index_are_known_loaded_or_not() -> None:
    bench = Bench()

    async with bench.running():
        assert [bench.models.name_of(name) for name in ("a", "gone", "made-up", "")] == ["a", "gone", UNKNOWN_MODEL, UNKNOWN_MODEL]


@pytest.mark.parametrize("name", ["line\nx", "nul\0x", "x" * 256, "blank x"])
async def test_a_folder_that_no_caller_can_name_is_no_model(name: str) -> None:
    bench = Bench()
    bench.upstream.control.states[name] = ModelState.READY

    async with bench.running():
        assert bench.models.name_of(name) == UNKNOWN_MODEL


async def test_a_new_model_is_known_a_second_after_somebody_asked_for_it() -> None:
    bench = Bench()

    async with bench.running():
        bench.upstream.control.states["new"] = ModelState.READY
        assert bench.models.name_of("new") == UNKNOWN_MODEL
        await asyncio.sleep(1.1)
        assert bench.models.name_of("new") == "new"


async def test_a_model_that_has_answered_is_known_at_once_and_stays_so_while_the_index_lists_it() -> None:
    bench = Bench()

    async with bench.running():
        bench.models.answered("new")
        assert bench.models.name_of("new") == "new"
        bench.upstream.control.states["new"] = ModelState.READY
        await asyncio.sleep(20.0)
        assert bench.models.name_of("new") == "new"


async def test_what_is_gone_from_the_index_is_forgotten() -> None:
    bench = Bench()

    async with bench.running():
        for number in range(1000):
            bench.models.answered(f"short-lived-{number}")
        del bench.upstream.control.states["a"]
        await asyncio.sleep(20.0)
        assert [name for name in ("a", "short-lived-7") if name in bench.models] == []


async def test_made_up_names_cost_triton_one_look_a_second() -> None:
    bench = Bench()
    asked = 0
    index = bench.upstream.control.index

    async def counted() -> Any:
        nonlocal asked
        asked += 1
        return await index()

    bench.upstream.control.index = counted  # type: ignore[method-assign]

    async with bench.running():
        for number in range(1000):
            bench.models.name_of(f"made-up-{number}")
            await asyncio.sleep(0.01)
    assert asked <= 11


async def test_while_triton_cannot_be_asked_what_was_known_stays() -> None:
    bench = Bench()

    async with bench.running():
        bench.models.answered("new")
        bench.upstream.control.live = False
        bench.upstream.control.compute = UpstreamUnavailable("gone")
        await asyncio.sleep(20.0)
        assert {"a", "new"} <= {name for name in ("a", "new") if name in bench.models}


async def test_a_look_that_is_broken_off_forgets_nothing() -> None:
    bench = Bench()

    async with bench.running():
        bench.models.answered("new")
        never = asyncio.Event()

        async def hangs() -> Any:
            await never.wait()

        bench.upstream.control.index = hangs  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await bench.models.refresh()
        assert {"a", "new"} <= {name for name in ("a", "new") if name in bench.models}


async def test_a_triton_that_comes_up_is_looked_at_within_a_second() -> None:
    bench = Bench()
    bench.servers.down("starting")

    async with bench.running():
        assert "a" not in bench.models
        bench.servers.up(bench.upstream)
        await asyncio.sleep(1.1)
        assert "a" in bench.models


async def test_of_a_triton_that_shows_its_index_to_nobody_what_is_loaded_is_known() -> None:
    bench = Bench()
    bench.upstream.control.failures["index"] = UpstreamUnavailable("This protocol is restricted")
    bench.upstream.control.compute = {"loaded": ComputeTime()}

    async with bench.running():
        assert bench.models.name_of("loaded") == "loaded"


async def test_in_a_fleet_its_description_counts_and_no_server_is_asked() -> None:
    described = {"cold"}
    models = ModelNames(Servers(None, ()), is_described=described.__contains__)

    await models.refresh()
    await models.run()
    models.answered("made-up")
    assert [models.name_of(name) for name in ("cold", "made-up")] == ["cold", UNKNOWN_MODEL]
    described.clear()
    assert models.name_of("cold") == UNKNOWN_MODEL


@pytest.mark.parametrize(
    ("name", "status", "is_missing"),
    [
        pytest.param("a", 404, False, id="listed"),
        pytest.param("gone", 404, False, id="listed-but-not-loaded"),
        pytest.param("new", 200, False, id="loaded-since"),
        pytest.param("new", 503, False, id="not-ready"),
        pytest.param("made-up", 404, True, id="unknown"),
        pytest.param("made-up", 400, True, id="unknown-to-an-older-triton"),
    ],
)
async def test_a_model_is_missing_where_neither_the_index_nor_triton_knows_it(name: str, status: int, is_missing: bool) -> None:
    bench = Bench()
    bench.upstream.http.answer = lambda request: make_answer(status if request.target == b"/v2/models/" + name.encode() else 500)

    async with bench.running():
        assert await bench.models.is_missing(name, timeout_s=5.0) is is_missing
        assert (name in bench.models) is (status == 200 or name in ("a", "gone"))


async def test_no_model_is_missing_for_certain_while_triton_is_down() -> None:
    bench = Bench()
    bench.servers.down("starting")
    assert not await bench.models.is_missing("made-up", timeout_s=5.0)


async def test_in_a_fleet_its_descriptions_say_which_models_are_missing() -> None:
    models = ModelNames(Servers(), is_described={"cold"}.__contains__)
    assert [name for name in ("cold", "made-up") if await models.is_missing(name, timeout_s=5.0)] == ["made-up"]
