from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from control_plane.concurrency.broadcast import Broadcast
from control_plane.core.errors import UpstreamUnavailable
from control_plane.triton.ports import Upstream
from control_plane.triton.server_state import ServerState
from control_plane.triton.servers import Servers
from tests.aio import run, settle
from tests.fakes import FakeUpstream


class Listener:
    """Fake `triton/server_state.ServerObserver` that records what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, str]] = []

    def up(self, upstream: Upstream, server: str) -> None:
        self.told.append((upstream, server))

    def down(self, reason: str, server: str) -> None:
        self.told.append((reason, server))

    def silence_changed(self, is_silent: bool, server: str) -> None:
        self.told.append(("silent" if is_silent else "heard", server))

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


def test_while_it_is_down_callers_are_told_when_it_should_be_up() -> None:
    clock = [0.0]
    server = ServerState("t", Broadcast(), (), now_s=lambda: clock[0])

    def told_at(now_s: float) -> float:
        clock[0] = now_s
        with pytest.raises(UpstreamUnavailable) as told:
            server.pick()
        return told.value.retry_after_s

    assert told_at(3.0) == 3.0, "it is starting"
    clock[0] = 8.0
    server.up(FakeUpstream())
    clock[0] = 100.0
    server.lost("Triton has crashed")
    assert told_at(102.0) == 6.0, "it took 8 s before"
    server.down("Triton is being restarted")
    assert [told_at(each) for each in (107.5, 110.0, 200.0)] == [0.5, 10.0, 30.0]


async def test_a_silence_is_told_once_and_ends_with_the_server() -> None:
    listener, upstream = Listener(), FakeUpstream()
    server = Servers(listener, ("s0",)).members["s0"]
    server.fell_silent()
    assert not server.is_silent, "it is down"
    server.up(upstream)
    for change in (server.heard, server.fell_silent, server.fell_silent, server.heard, server.fell_silent):
        change()
    server.down("it crashed")
    assert not server.is_silent
    server.up(upstream)
    assert server.is_answering
    silences = [("silent", "s0"), ("heard", "s0"), ("silent", "s0")]
    assert listener.told == [(upstream, "s0"), *silences, ("it crashed", "s0"), (upstream, "s0")]


async def test_whoever_asks_a_silent_server_does_not_wait() -> None:
    servers = Servers()
    servers.up(FakeUpstream())
    servers.fell_silent()
    with pytest.raises(UpstreamUnavailable, match="says nothing"):
        servers.require_ready()
    with pytest.raises(UpstreamUnavailable, match="says nothing"):
        await servers.ask(_never)
    assert servers.pick(), "but requests wait for it: nobody else could answer them"
    servers.heard()
    servers.require_ready()
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(_outcome(servers.ask(_never)))
        await settle()
        assert not asking.done()
        servers.fell_silent()
        assert isinstance(await asking, UpstreamUnavailable), "it fell silent meanwhile"


async def test_what_all_can_answer_the_next_one_is_asked_if_the_first_falls_silent() -> None:
    servers, upstreams = Servers(None, ("s0", "s1")), (FakeUpstream(), FakeUpstream())
    for member, upstream in zip(servers.members.values(), upstreams, strict=True):
        member.up(upstream)

    async def ask(upstream: Upstream) -> Upstream:
        return await _never(upstream) if upstream is upstreams[0] else upstream

    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(servers.ask(ask))
        await settle()
        servers.members["s0"].fell_silent()
        assert await asking is upstreams[1]
    assert servers.pick() is upstreams[1]
    servers.require_ready()
    assert list(servers.answering) == ["s1"]
    with pytest.raises(TimeoutError):  # of what was asked, not ours
        await servers.members["s1"].ask(_too_late)


async def _never(upstream: Upstream) -> Upstream:
    await asyncio.Event().wait()
    return upstream


async def _too_late(upstream: Upstream) -> Upstream:
    raise TimeoutError


async def _outcome(work: Coroutine[Any, Any, object]) -> object:
    try:
        return await work
    except UpstreamUnavailable as exc:
        return exc


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
