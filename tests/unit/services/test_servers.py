from __future__ import annotations

import asyncio

import pytest

from control_plane.domain.errors import UpstreamUnavailable
from control_plane.ports import Upstream
from control_plane.services.servers import Servers
from tests.aio import run, settle
from tests.fakes import FakeUpstream


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

        def up(self, upstream: Upstream) -> None:
            self.told.append(upstream)

        def down(self, reason: str) -> None:
            self.told.append(reason)

    follower, upstream = Follower(), FakeUpstream()
    servers = Servers(follower)
    servers.up(upstream)
    servers.down("Triton has ended")
    assert follower.told == [upstream, "Triton has ended"]
