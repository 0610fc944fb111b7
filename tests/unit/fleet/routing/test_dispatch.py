from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from control_plane.core.errors import ModelNotFound, Overloaded, UpstreamUnavailable
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.triton.ports import Upstream
from tests.fakes import FakeHttpStream
from tests.unit.fleet.fleet_bench import READY, FleetBench, call, model, running
from tests.unit.fleet.routing.dispatch_bench import Request, idle, send, status

pytestmark = pytest.mark.virtual_time

MISSING = make_answer(404, b"Request for unknown model")


async def test_a_request_goes_to_the_server_that_loads_its_model_with_what_is_left_of_its_time() -> None:
    async with running(FleetBench(servers=2)) as bench:
        request = Request()
        assert status(await send(bench, request, timeout_s=5.0)) == 200
        ((server, timeout_s),) = request.sent
        assert server.control.loads == ["a"]  # type: ignore[attr-defined]
        assert timeout_s == pytest.approx(4.0)
        assert idle(bench)


async def test_where_it_is_missing_it_is_loaded_again_and_the_request_sent_once_more() -> None:
    async with running(FleetBench()) as bench:
        await bench.use("a")
        bench.tritons["s0"].states.clear()
        request = Request([MISSING, make_answer(200, b"")])
        assert status(await send(bench, request)) == 200
        assert bench.said == ["load a", "load a"]
        assert bench.told() == [("loaded", "a"), ("lost", "a"), ("loaded", "a")]
        assert idle(bench)


async def test_missing_on_one_server_it_goes_to_the_other() -> None:
    async with running(FleetBench(servers=2)) as bench:
        for name, triton in bench.tritons.items():
            triton.states["a"] = READY
            await bench.loads[name].poll_index()
        request = Request([MISSING, make_answer(200, b"")])
        assert status(await send(bench, request)) == 200
        (first, _), (second, _) = request.sent
        assert first is not second
        assert not bench.said


async def test_missing_twice_is_the_answer() -> None:
    async with running(FleetBench()) as bench:
        request = Request([MISSING, MISSING])
        assert status(await send(bench, request)) == 404
        assert len(request.sent) == 2
        assert idle(bench)


@pytest.mark.parametrize("answer", [make_answer(500, b""), make_answer(503, b"")])
async def test_another_error_is_the_answer_at_once(answer: HttpAnswer) -> None:
    async with running(FleetBench()) as bench:
        request = Request([answer])
        assert await send(bench, request) is answer
        assert idle(bench)


async def _fails(bench: FleetBench) -> None:
    with pytest.raises(UpstreamUnavailable):
        await send(bench, Request([UpstreamUnavailable("connection lost")]))


async def _is_cancelled(bench: FleetBench) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0):
            await send(bench, Request(takes_s=60.0))


async def _is_cancelled_while_it_waits(bench: FleetBench) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await send(bench, Request())
    await asyncio.sleep(1.0)


@pytest.mark.parametrize("ends", [_fails, _is_cancelled, _is_cancelled_while_it_waits])
async def test_its_place_is_given_back_however_it_ends(ends: Callable[[FleetBench], Any]) -> None:
    async with running(FleetBench()) as bench:
        service_s = bench.state.fleet.models["a"].service_s
        await ends(bench)
        assert bench.replica("a").state is READY
        assert idle(bench)
        assert bench.state.fleet.models["a"].service_s == service_s, "its time says nothing"


async def test_refusals_come_through() -> None:
    async with running(FleetBench()) as bench:
        with pytest.raises(Overloaded):
            await send(bench, Request(), timeout_s=0.1)
        with pytest.raises(ModelNotFound):
            await bench.dispatch.reading("nonesuch", timeout_s=5.0)


class TestStreams:
    async def test_keep_their_place_until_they_are_closed(self) -> None:
        async with running(FleetBench(model("a", 60), model("b", 60))) as bench:
            stream = FakeHttpStream().put(b"x", None)
            held = await bench.dispatch.stream(Request([stream]), call("a"), timeout_s=5.0)  # type: ignore[arg-type]
            assert not isinstance(held, HttpAnswer)
            assert (held.status, held.head) == (stream.status, stream.head)
            assert [await held.receive(), await held.receive()] == [b"x", None]
            await asyncio.sleep(100)
            assert bench.replica("a").in_flight == 1
            with pytest.raises(Overloaded):
                await bench.use("b", 2.5)
            held.close()
            held.close()
            assert stream.closed.is_set()
            assert idle(bench)
            assert await bench.use("b", 2.5) == "s0"

    @pytest.mark.parametrize("answer", [make_answer(200, b"whole"), UpstreamUnavailable("connection lost")])
    async def test_what_is_no_stream_keeps_nothing(self, answer: object) -> None:
        async with running(FleetBench()) as bench:
            with suppress(UpstreamUnavailable):
                await bench.dispatch.stream(Request([answer]), call("a"), timeout_s=5.0)  # type: ignore[arg-type]
            assert idle(bench)


async def test_who_sends_by_itself_has_its_place_for_as_long_as_the_block_lasts() -> None:
    async with running(FleetBench()) as bench:
        async with bench.dispatch.server_for(call("a"), timeout_s=5.0) as server:
            assert server is bench.servers.pick()
            assert bench.replica("a").in_flight == 1
        assert idle(bench)
        assert await bench.dispatch.ready() == {"a"}
        assert await bench.dispatch.reading("b", timeout_s=5.0) is server
        assert await bench.dispatch.ready() == {"a", "b"}
        assert idle(bench)


def pooled(*pools: str) -> FleetBench:
    bench = FleetBench(servers=len(pools))
    for server, pool in zip(list(bench.state.fleet.servers.values()), pools, strict=True):
        server.pool = pool
        bench.state.fleet.add_server(server)
    return bench


@dataclass
class Asked:
    """The part of `inference/in_flight/running_request.AuthorizedRequest` that a dispatcher reads, and tells where the
    request goes."""

    units: float | None
    pool: str = ""
    rows: int = 1
    priority: int = 0
    server: str = ""
    sent_s: float | None = None
    expected_units: float = 1.0
    is_repeatable: bool = False
    permit: Any = field(default_factory=lambda: SimpleNamespace(enter_room=None, is_interrupted=False))

    def sent(self, server: str) -> None:
        self.server, self.sent_s = server, asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("units", "pool", "loaded_on"),
    [
        pytest.param(1.0, "", "s0", id="short"),
        pytest.param(1000.0, "", "s1", id="long"),
        pytest.param(1.0, "long", "s1", id="as its route says"),
    ],
)
async def test_each_kind_of_request_goes_to_its_pool(units: float, pool: str, loaded_on: str) -> None:
    async with running(pooled("short", "long")) as bench:
        asked, by, request = call("a"), Asked(units, pool), Request([make_answer(200, b""), make_answer(200, b"")])
        await bench.dispatch.send(request, asked, timeout_s=5.0, running=by)  # type: ignore[arg-type]
        await bench.dispatch.stream(request, asked, timeout_s=5.0, running=by)  # type: ignore[arg-type]
        async with bench.dispatch.server_for(asked, timeout_s=5.0, running=by) as server:  # type: ignore[arg-type]
            assert server is bench.servers.get(loaded_on)
        assert bench.tritons[loaded_on].loads == ["a"]
        assert {id(each) for each, _ in request.sent} == {id(server)}
        assert by.server == loaded_on


async def test_a_request_is_charged_from_when_its_model_is_there_and_nobody_for_a_load() -> None:
    class Slow(Request):
        async def send(self, server: Upstream, *, timeout_s: float) -> Any:
            assert by.sent_s == asyncio.get_running_loop().time() > began_s
            return await super().send(server, timeout_s=timeout_s)

    by, began_s = Asked(None), 0.0
    async with running(FleetBench(servers=1)) as bench:
        bench.tritons["s0"].load_s["a"] = 2.0
        began_s = asyncio.get_running_loop().time() + 1.9
        await bench.dispatch.send(Slow([make_answer(200, b"")]), call("a"), timeout_s=5.0, running=by)  # type: ignore[arg-type]
        assert by.sent_s is not None
        with pytest.raises(ModelNotFound):
            await bench.dispatch.send(Slow([]), call("nowhere"), timeout_s=5.0, running=by)  # type: ignore[arg-type]
        assert by.sent_s is None


async def test_a_conversation_stays_where_it_is_while_others_are_spread() -> None:
    async with running(FleetBench(servers=3)) as bench:
        for name in ("s0", "s1", "s2"):
            bench.tritons[name].states["a"] = READY
            await bench.loads[name].poll_index()

        async def where(conversation: int) -> Upstream:
            async with bench.dispatch.server_for(replace(call("a"), sequence_id=str(conversation)), timeout_s=5.0) as server:
                return server

        at = {number: await where(number) for number in range(30)}
        assert [await where(number) for number in at] == list(at.values())
        assert len({id(server) for server in at.values()}) == 3


async def test_streams_alone_bring_an_ejected_server_back() -> None:
    async with running(FleetBench(model("a", min_replicas=3), servers=3), reconciles=True) as bench:
        await asyncio.sleep(10)
        for _ in range(5):
            bench.state.ejection.failed(bench.state.reserve("a", "s0"))  # type: ignore[arg-type]
        await asyncio.sleep(1)
        assert bench.server().is_ejected
        for _ in range(120):
            async with bench.dispatch.server_for(call("a"), timeout_s=5.0):
                await asyncio.sleep(0.1)
        assert not bench.server().is_ejected


async def test_a_version_that_is_not_there_does_not_lose_the_replica() -> None:
    async with running(FleetBench()) as bench:
        await bench.use("a")
        request = Request([MISSING])
        asked = replace(call("a"), model_version="99")
        answer = await bench.dispatch.send(request, asked, timeout_s=60.0)  # type: ignore[arg-type]
        assert status(answer) == 404
        assert bench.told() == [("loaded", "a")]
        assert idle(bench)
