"""Launcher of an adopted Triton: it waits for it, sees its end, however fast the next one comes, and never ends it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from control_plane.core.endpoints import TritonEndpoints
from control_plane.core.errors import StartupError
from control_plane.triton.adopted.launcher import AdoptedTritonLauncher
from tests.unit.triton.adapters.fake_grpc_server import FakeServer, echo, serving


def launcher(port: int, repository: Path, *, start_timeout_s: float = 60.0) -> AdoptedTritonLauncher:
    return AdoptedTritonLauncher(TritonEndpoints("127.0.0.1", 1, port, None), repository, start_timeout_s=start_timeout_s)


async def test_it_makes_the_repository_without_which_triton_would_not_start(tmp_path: Path) -> None:
    async with serving(echo) as server:
        triton = await launcher(server.port, tmp_path / "triton/repository").start()
        assert (tmp_path / "triton/repository").is_dir()
        await triton.stop(grace_s=1.0)


async def test_one_that_is_absent_is_waited_for_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with serving(echo) as server:
            port = server.port
        starting = asyncio.ensure_future(launcher(port, tmp_path).start())  # noqa: TID251 - awaited below
        while not caplog.records:
            await asyncio.sleep(0.01)
        server = FakeServer(echo)
        await server.start(port)
        await (await starting).stop(grace_s=1.0)
        await server.stop()
    assert "waiting for Triton at 127.0.0.1:" in caplog.text
    assert "at most 60 s" in caplog.text


async def test_the_wait_is_bounded(tmp_path: Path) -> None:
    async with serving(echo) as server:
        port = server.port
    with pytest.raises(StartupError, match=r"no Triton accepted connections at .* \(--attach\) within 0.3 s"):
        await launcher(port, tmp_path, start_timeout_s=0.3).start()


async def test_its_end_is_seen_though_another_is_there_at_once(tmp_path: Path) -> None:
    async with serving(echo) as server:
        triton = await launcher(server.port, tmp_path).start()
        waiting = asyncio.ensure_future(triton.wait())  # noqa: TID251 - awaited below
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await server.stop()
        again = FakeServer(echo)
        await again.start(server.port)
        async with asyncio.timeout(20.0):
            assert (await waiting).startswith("Triton at 127.0.0.1:")
        await again.stop()


async def test_a_stop_lets_go_of_it_and_ends_the_wait(tmp_path: Path) -> None:
    async with serving(echo) as server:
        triton = await launcher(server.port, tmp_path).start()
        await triton.stop(grace_s=1.0)
        await triton.stop(grace_s=1.0)
        await triton.wait()
        await (await launcher(server.port, tmp_path).start()).stop(grace_s=1.0)


async def test_processes_that_are_not_seen_are_said_once_and_loads_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with serving(echo) as server:
            launch = launcher(server.port, tmp_path)
            for _ in range(2):
                triton = await launch.start()
                assert triton.held_memory() is None
                await triton.stop(grace_s=1.0)
            done: list[float] = []

            async def load(timeout_s: float) -> None:
                done.append(timeout_s)

            await launch.carry_out(["model"], load, timeout_s=3.0)
            assert done == [3.0]
            assert await launch.stubs_of(["model"]) == []
    assert [record.getMessage().count("shareProcessNamespace") for record in caplog.records] == [1]
