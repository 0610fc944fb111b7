from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import UpstreamUnavailable
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers, SingleServerDispatch
from tests.aio import run, settle
from tests.fakes import FakeUpstream
from tests.unit.fleet.fleet_bench import READY, UNLOADING, call
from tests.unit.fleet.routing.test_dispatch import Request


class Listener:
    """Fake `triton/servers.ServerObserver` that records what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, str]] = []

    def up(self, upstream: Upstream, server: str) -> None:
        self.told.append((upstream, server))

    def down(self, reason: str, server: str) -> None:
        self.told.append((reason, server))

    def left(self, server: str) -> None:
        self.told.append(("left", server))


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


async def test_waiting_ends_when_it_is_up_and_begins_anew_after_it_was_down() -> None:
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


def test_a_follower_is_told_of_every_change() -> None:
    follower, upstream = Listener(), FakeUpstream()
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
        assert servers.pick() is servers.get("s1") is second
        assert servers.live == {"s1": second}
        with pytest.raises(UpstreamUnavailable, match="Triton is starting"):
            servers.get("s0")
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

    async def test_waiting_ends_when_each_has_been_up_and_one_still_is(self, servers: Servers) -> None:
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

    def test_each_who_follows_is_told_whose_change_it_is_from_then_on(self, servers: Servers) -> None:
        first, second, upstream = Listener(), Listener(), FakeUpstream()
        servers.follow(first)
        servers.members["s1"].up(upstream)
        servers.follow(second)
        servers.members["s1"].down("it crashed")
        servers.remove("s1")
        assert first.told == [(upstream, "s1"), *second.told]
        assert second.told == [("it crashed", "s1"), ("left", "s1")]


class TestAsking:
    """Calls that all servers answer alike."""

    def asked(self, servers: Servers, *gone: Upstream) -> list[Upstream]:
        """Servers are asked in turn, until one answers."""
        found: list[Upstream] = []

        async def ask(upstream: Upstream) -> int:
            found.append(upstream)
            if upstream in gone:
                raise UpstreamUnavailable("connection refused")
            return len(found)

        assert run(servers.ask(ask)) == len(found)
        return found

    def test_the_first_that_is_up_answers_and_one_that_has_just_gone_is_passed_over(self) -> None:
        servers, first, second = Servers(None, ("s0", "s1", "s2")), FakeUpstream(), FakeUpstream()
        servers.members["s1"].up(first)
        servers.members["s2"].up(second)
        assert self.asked(servers) == [first]
        assert self.asked(servers, first) == [first, second]

    def test_with_none_it_says_why(self) -> None:
        servers, only = Servers(), FakeUpstream()
        with pytest.raises(UpstreamUnavailable, match="Triton is starting"):
            self.asked(servers)
        servers.up(only)
        with pytest.raises(UpstreamUnavailable, match="connection refused"):
            self.asked(servers, only)


class TestJoiningAndLeaving:
    def test_with_none_it_says_so(self) -> None:
        with pytest.raises(UpstreamUnavailable, match="no server has joined the fleet yet"):
            Servers(None, ()).pick()

    def test_one_that_joins_is_told_of_like_the_others(self) -> None:
        follower, upstream = Listener(), FakeUpstream()
        servers = Servers(follower, ())
        servers.add("late").up(upstream)
        assert servers.pick() is servers.get("late") is upstream
        assert follower.told == [(upstream, "late")]

    def test_when_the_first_has_left_another_answers_what_all_answer_alike(self) -> None:
        servers, second = Servers(None, ("s0", "s1")), FakeUpstream()
        servers.members["s0"].up(FakeUpstream())
        servers.members["s1"].up(second)
        servers.members["s0"].down("it leaves")
        servers.remove("s0")
        assert list(servers.members) == ["s1"]
        assert servers.pick() is second
        servers.members["s1"].down("it leaves, too")
        servers.remove("s1")
        assert not servers.is_up
        with pytest.raises(UpstreamUnavailable, match="no server has joined"):
            servers.pick()

    def test_what_is_lost_is_down_and_counted_also_of_those_that_have_left(self) -> None:
        listener = Listener()
        servers = Servers(listener, ("s0", "s1"))
        for name, times in (("s0", 2), ("s1", 1)):
            for _ in range(times):
                servers.members[name].up(FakeUpstream())
                assert not servers.members[name].is_lost
                servers.members[name].lost("it was killed")
                assert servers.members[name].is_lost
        servers.members["s0"].up(FakeUpstream())
        servers.members["s0"].down("it leaves")
        servers.remove("s0")
        assert servers.losses == 3
        with pytest.raises(UpstreamUnavailable, match="it was killed"):
            servers.pick()

    @pytest.mark.virtual_time
    async def test_nobody_waits_long_for_those_that_need_not_be_up(self) -> None:
        now_s = asyncio.get_running_loop().time
        servers = Servers(None, ())
        servers.add("here", is_needed=False)
        away = servers.add("away", is_needed=False)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600.0):
                await servers.wait_until_up()
        servers.members["here"].up(FakeUpstream())
        began_s = now_s()
        await servers.wait_until_up()
        assert 0.0 < now_s() - began_s < 5.0
        away.up(FakeUpstream())
        began_s = now_s()
        await servers.wait_until_up()
        assert now_s() == began_s


async def test_where_there_is_one_all_goes_there() -> None:
    servers, upstream = Servers(), FakeUpstream()
    upstream.control.states |= {"a": READY, "b": UNLOADING}
    one, request = SingleServerDispatch(servers), Request()
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
