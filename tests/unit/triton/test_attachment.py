from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from control_plane.core.errors import StartupError, UpstreamUnavailable
from control_plane.triton.attachment import AttachedHealthCheck
from control_plane.triton.http_opening import OPENS_WITHIN_S
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers
from tests.fakes import FakeUpstream

pytestmark = pytest.mark.virtual_time


class Bench:
    def __init__(self, *, live: bool = True, start_timeout_s: float | None = 10.0) -> None:
        self.upstream, self.servers = FakeUpstream(), Servers()
        self.upstream.control.live = live
        self.restored: list[Upstream] = []
        self.was_up_while_restoring: list[bool] = []
        self.may_restore = asyncio.Event()
        self.may_restore.set()
        self.attachment = AttachedHealthCheck(
            upstream=self.upstream, servers=self.servers, restore=self._restore, start_timeout_s=start_timeout_s
        )

    async def _restore(self, upstream: Upstream) -> None:
        self.was_up_while_restoring.append(self.servers.is_up)
        await self.may_restore.wait()
        self.restored.append(upstream)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.attachment.run())
            yield task
            task.cancel()

    async def wait_until_down(self) -> None:
        while self.servers.is_up:
            await asyncio.sleep(0.1)


async def test_up_once_it_is_live_and_the_wanted_models_are_loaded() -> None:
    bench = Bench()
    async with bench.running():
        await bench.servers.wait_until_up()
        assert bench.restored == [bench.upstream]
        assert bench.was_up_while_restoring == [False]
        assert bench.servers.pick() is bench.upstream


async def test_waits_for_a_triton_that_is_still_starting() -> None:
    bench = Bench(live=False)
    async with bench.running():
        await asyncio.sleep(9.0)
        assert bench.restored == []
        bench.upstream.control.live = True
        await bench.servers.wait_until_up()
        assert asyncio.get_running_loop().time() < 10.0


async def test_waits_for_http_which_triton_opens_after_grpc() -> None:
    bench = Bench()
    bench.upstream.serves_http = False
    async with bench.running():
        await asyncio.sleep(0.5)
        assert not bench.servers.is_up
        bench.upstream.serves_http = True
        await asyncio.sleep(0.5)
        assert bench.servers.is_up


async def test_does_without_http_where_it_is_switched_off() -> None:
    bench = Bench()
    bench.upstream.serves_http = False
    async with bench.running():
        await asyncio.sleep(1 + OPENS_WITHIN_S)
        assert bench.servers.is_up


async def test_gives_up_when_it_is_not_live_within_the_start_timeout() -> None:
    bench = Bench(live=False)
    with pytest.raises(StartupError, match=r"no live Triton answered at --triton-url \(127\.0\.0\.1:2\) within 10 s"):
        await bench.attachment.run()
    assert asyncio.get_running_loop().time() == pytest.approx(10.0)
    assert bench.upstream.closed
    with pytest.raises(UpstreamUnavailable):
        bench.servers.pick()


async def test_one_that_need_not_be_up_at_the_start_is_waited_for_however_long_it_takes() -> None:
    bench = Bench(live=False, start_timeout_s=None)
    async with bench.running():
        await asyncio.sleep(3600.0)
        assert not bench.servers.is_up
        bench.upstream.control.live = True
        await asyncio.sleep(1.0)
        assert bench.servers.pick() is bench.upstream


async def test_down_within_two_seconds_of_its_death_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        bench = Bench()
        async with bench.running():
            await bench.servers.wait_until_up()
            died_s = asyncio.get_running_loop().time()
            bench.upstream.control.live = False
            await bench.wait_until_down()
            assert asyncio.get_running_loop().time() - died_s < 2.0
            with pytest.raises(UpstreamUnavailable, match=r"the attached Triton at 127\.0\.0\.1:2 does not answer"):
                bench.servers.pick()
            assert bench.servers.losses == 1
        assert bench.servers.losses == 1, "the gateway's own end is none"
    assert "the attached Triton at 127.0.0.1:2 does not answer" in caplog.text


async def test_comes_back_whenever_it_does_with_its_models_restored_first() -> None:
    bench = Bench()
    async with bench.running():
        for life in range(1, 4):
            await bench.servers.wait_until_up()
            assert bench.restored == [bench.upstream] * life
            bench.upstream.control.live = False
            await bench.wait_until_down()
            await asyncio.sleep(3600.0)  # far longer than the start timeout, which is for the start
            bench.upstream.control.live = True
    assert not any(bench.was_up_while_restoring)


@pytest.mark.parametrize("moment", ["waiting for it to be live", "restoring", "up", "down"])
async def test_cancelling_it_reports_it_down_and_closes_the_connection(moment: str) -> None:
    bench = Bench(live=moment != "waiting for it to be live")
    if moment == "restoring":
        bench.may_restore.clear()
    async with bench.running() as task:
        await asyncio.sleep(1.0)
        if moment == "down":
            bench.upstream.control.live = False
            await bench.wait_until_down()
        assert bench.servers.is_up is (moment == "up")
        assert not bench.upstream.closed
    assert task.cancelled()
    assert bench.upstream.closed
    with pytest.raises(UpstreamUnavailable, match="the gateway is stopping"):
        bench.servers.pick()
