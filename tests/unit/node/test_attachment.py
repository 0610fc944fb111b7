"""When a server with a node is up: by its node and by its Triton, each of which may be away without the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from control_plane.concurrency.broadcast import Broadcast
from control_plane.core.errors import StartupError, UpstreamUnavailable
from control_plane.node.attachment import NodeHealthCheck
from control_plane.node.domain.fence import Term
from control_plane.triton.http_opening import OPENS_WITHIN_S
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import ServerState
from tests.fakes import FakeUpstream
from tests.unit.node.bench import Bench, Gateway

pytestmark = pytest.mark.virtual_time


@dataclass
class Attached:
    bench: Bench
    gateway: Gateway
    member: ServerState
    running: asyncio.Task[None] | None = None
    upstreams: list[FakeUpstream] = field(default_factory=list)
    serves_http: bool = True

    def connect(self) -> Upstream:
        """Straight to the Triton that runs there now."""
        self.upstreams.append(FakeUpstream(control=self.bench.control, serves_http=self.serves_http))
        return self.upstreams[-1]

    async def until(self, *, is_up: bool) -> None:
        while self.member.is_up is not is_up:
            await asyncio.sleep(0.05)


@asynccontextmanager
async def attached(
    bench: Bench, *, is_leader: bool = True, start_timeout_s: float | None = None, serves_http: bool = True
) -> AsyncIterator[Attached]:
    gateway = bench.gateway()
    gateway.run.cancel()  # the health check runs the connection
    await asyncio.wait([gateway.run])
    made = Attached(bench, gateway, ServerState("s0", Broadcast(), ()), serves_http=serves_http)
    term = Term("fleet", 1) if is_leader else None
    health = NodeHealthCheck(gateway.node, connect=made.connect, servers=made.member, term=lambda: term, start_timeout_s=start_timeout_s)
    made.running = asyncio.get_running_loop().create_task(health.run())
    try:
        yield made
    finally:
        made.running.cancel()
        await asyncio.gather(made.running, return_exceptions=True)


async def test_it_is_up_once_the_node_has_said_everything_and_its_index_is_the_nodes() -> None:
    async with Bench().running() as bench, attached(bench) as found:
        await found.until(is_up=True)
        assert found.gateway.node.is_connected
        assert await found.member.pick().control.index() == []
        await found.gateway.load("a")
        (line,) = await found.member.pick().control.index()
        assert line.name == "a"


async def test_a_triton_whose_http_is_busy_is_waited_for_a_moment_only() -> None:
    async with Bench().running() as bench, attached(bench, serves_http=False) as found:
        await asyncio.sleep(1.0)
        assert not found.member.is_up
        await asyncio.sleep(OPENS_WITHIN_S)
        assert found.member.is_up


async def test_a_refused_gateway_says_why_for_as_long_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    async with Bench().running() as bench:
        owner = await bench.gateway(fleet="other").connected()
        await owner.node.index(owner.term())
        async with attached(bench) as found:
            assert "has not been reached yet" in found.gateway.node.why_unusable
            await found.until(is_up=True)
            for _ in range(2):
                with pytest.raises(UpstreamUnavailable):
                    await found.member.pick().control.index()
            assert "the node at node:1 refuses this gateway: fleet 'other' uses this node" in found.gateway.node.why_unusable
            assert caplog.text.count("the node of server s0 refuses this gateway") == 1
            owner.run.cancel()  # it says goodbye
            await asyncio.wait([owner.run])
            await asyncio.sleep(0.1)
            await found.member.pick().control.index()
            assert found.gateway.node.why_unusable == ""


async def test_without_its_node_triton_goes_on_for_as_long_as_nobody_says_that_the_node_has_ended() -> None:
    async with Bench().running() as bench, attached(bench) as found:
        await found.until(is_up=True)
        found.gateway.silence()
        await asyncio.sleep(20.0)
        assert found.member.is_up
        assert not found.gateway.node.is_connected
        with pytest.raises(UpstreamUnavailable, match="is away"):
            await found.member.pick().control.index()


async def test_a_node_that_has_ended_takes_its_triton_along_and_what_that_has_is_let_finish() -> None:
    async with Bench().running() as bench, attached(bench) as found:
        await found.until(is_up=True)
        first = found.upstreams[-1]
        found.gateway.is_reachable = False
        found.gateway.wires[-1].to_gateway.put_nowait(None)
        began_s = bench.now_s()
        await found.until(is_up=False)
        assert bench.now_s() - began_s < 1.0, "before Triton itself is gone"
        assert not first.closed
        first.control.live = False
        await asyncio.sleep(5.0)
        assert first.closed
        await bench.start_triton()
        found.upstreams[-1].control.live = True
        found.gateway.is_reachable = True
        await found.until(is_up=True)


async def test_another_life_of_triton_is_another_server() -> None:
    async with Bench().running() as bench, attached(bench) as found:
        await found.until(is_up=True)
        first = found.member.pick()
        await bench.start_triton()
        while not found.member.losses:
            await asyncio.sleep(0.05)
        await found.until(is_up=True)
        assert found.member.pick() is not first
        assert found.member.losses == 1


async def test_a_triton_that_is_silent_for_long_is_lost_though_its_node_lives() -> None:
    async with Bench().running() as bench, attached(bench) as found:
        await found.until(is_up=True)
        found.upstreams[-1].thaw.clear()
        await asyncio.sleep(2.0)
        assert found.member.is_silent
        await asyncio.sleep(10.0)
        assert found.member.losses == 1


async def test_a_triton_that_goes_on_after_a_long_silence_has_what_its_node_says_anew() -> None:
    async with Bench().running() as bench, attached(bench) as found:
        await found.until(is_up=True)
        await found.gateway.load("a")
        known = found.gateway.knows("a")
        assert known is not None
        found.upstreams[-1].thaw.clear()  # the next connection to it is answered at once
        while not found.member.losses:
            await asyncio.sleep(0.05)
        await found.until(is_up=True)
        assert len(found.gateway.wires) == 2
        assert found.gateway.knows("a") == known


async def test_of_a_silent_triton_whose_node_goes_away_too_nothing_counts() -> None:
    async with Bench().running() as bench, attached(bench) as found:
        await found.until(is_up=True)
        await found.gateway.load("a")
        known = found.gateway.fingerprints.get("a")
        assert known is not None
        await found.gateway.board.of_server("other").publish({"a": known})
        bench.control.live = False
        found.upstreams[-1].thaw.clear()
        while not found.member.losses:
            await asyncio.sleep(0.05)
        await found.gateway.connected()
        found.gateway.is_reachable = False
        found.gateway.wires[-1].to_gateway.put_nowait(None)
        await asyncio.sleep(1.0)
        assert found.gateway.knows("a") == known.digest, "as the other server has it"


async def test_a_server_that_is_not_up_in_time_says_why() -> None:
    async with Bench().running() as bench:
        bench.member.down("it cannot start")
        async with attached(bench, start_timeout_s=5.0) as found:
            assert found.running is not None
            with pytest.raises(ExceptionGroup) as caught:
                await found.running
        (error,) = caught.value.exceptions
        assert isinstance(error, StartupError)
        assert "it cannot start" in str(error)
