from __future__ import annotations

import asyncio

import pytest

from control_plane.domain.errors import UpstreamUnavailable
from control_plane.ports import Upstream
from control_plane.services.servers import OneServer, Servers
from tests.aio import run, settle
from tests.fakes import FakeUpstream
from tests.unit.services.fleet_bench import READY, UNLOADING, call
from tests.unit.services.test_dispatch import Request


def test_before_anything_is_up_it_says_why() -> None:
    servers = Servers()
    assert not servers.is_up
    with pytest.raises(UpstreamUnavailable, match="Triton is starting; try again shortly"):
        servers.pick()


def test_up_and_down() -> None:
    servers, first, second = Servers(), FakeUpstream(), FakeUpstream()
    servers.up(first)
    assert servers.is_up
    assert servers.pick() is first
    servers.down("it crashed")
    assert not servers.is_up
    with pytest.raises(UpstreamUnavailable, match="it crashed"):
        servers.pick()
    servers.up(second)
    assert servers.pick() is second


def test_waiting_ends_when_it_is_up_and_begins_anew_after_it_was_down() -> None:
    async def main() -> None:
        servers = Servers()
        async with asyncio.TaskGroup() as tasks:
            waiters = [tasks.create_task(servers.wait_until_up()) for _ in range(2)]
            await settle()
            assert not any(waiter.done() for waiter in waiters)
            servers.up(FakeUpstream())
        await servers.wait_until_up()
        servers.down("it crashed")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await servers.wait_until_up()

    run(main())


def test_a_follower_is_told_of_every_change() -> None:
    class Follower:
        def __init__(self) -> None:
            self.told: list[object] = []

        def up(self, upstream: Upstream, server: str) -> None:
            self.told.append((upstream, server))

        def down(self, reason: str, server: str) -> None:
            self.told.append((reason, server))

    follower, upstream = Follower(), FakeUpstream()
    servers = Servers(follower)
    servers.up(upstream)
    servers.down("Triton has ended")
    assert follower.told == [(upstream, "triton"), ("Triton has ended", "triton")]


class TestSeveral:
    @pytest.fixture
    def servers(self) -> Servers:
        return Servers(None, ("s0", "s1"))

    def test_any_that_is_up_will_do_and_each_can_be_had(self, servers: Servers) -> None:
        second = FakeUpstream()
        servers.members["s1"].up(second)
        assert servers.is_up
        assert servers.pick() is servers.of("s1") is second
        assert servers.live == {"s1": second}
        with pytest.raises(UpstreamUnavailable, match="Triton is starting"):
            servers.of("s0")
        first = FakeUpstream()
        servers.members["s0"].up(first)
        assert servers.pick() is first
        assert servers.live == {"s0": first, "s1": second}
        servers.members["s0"].down("it crashed")
        assert servers.pick() is second

    def test_with_none_up_the_first_says_why(self, servers: Servers) -> None:
        servers.members["s0"].down("it crashed")
        servers.members["s1"].down("it hangs")
        assert (servers.is_up, servers.live) == (False, {})
        with pytest.raises(UpstreamUnavailable, match="it crashed"):
            servers.pick()

    def test_waiting_ends_when_each_has_been_up_and_one_still_is(self, servers: Servers) -> None:
        async def main() -> None:
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(servers.wait_until_up())
                await settle()
                servers.members["s0"].up(FakeUpstream())
                await settle()
                assert not waiting.done()
                servers.members["s0"].down("it crashed")
                servers.members["s1"].up(FakeUpstream())
                await settle()
                assert waiting.done()

        run(main())

    def test_who_follows_is_told_whose_change_it_is_and_who_followed_before_is_not(self, servers: Servers) -> None:
        class Follower:
            def __init__(self) -> None:
                self.told: list[tuple[str, str]] = []

            def up(self, upstream: Upstream, server: str) -> None:
                self.told.append(("up", server))

            def down(self, reason: str, server: str) -> None:
                self.told.append((reason, server))

        before, after = Follower(), Follower()
        servers.follow(before)
        servers.members["s1"].up(FakeUpstream())
        servers.follow(after)
        servers.members["s1"].down("it crashed")
        assert (before.told, after.told) == ([("up", "s1")], [("it crashed", "s1")])


def test_where_there_is_one_all_goes_there() -> None:
    async def main() -> None:
        servers, upstream = Servers(), FakeUpstream()
        upstream.control.states |= {"a": READY, "b": UNLOADING}
        one, request = OneServer(servers), Request()
        with pytest.raises(UpstreamUnavailable, match="starting"):
            await one.reading("a", timeout_s=1.0)
        servers.up(upstream)
        await one.send(request, call("a"), timeout_s=3.0)
        request.answers.append(b"")
        await one.stream(request, call("a"), timeout_s=4.0)
        assert request.sent == [(upstream, 3.0), (upstream, 4.0)]
        async with one.server_for(call("a"), timeout_s=1.0) as server:
            assert server is upstream
        assert await one.reading("a", timeout_s=1.0) is upstream
        assert await one.ready() == {"a"}

    run(main())
