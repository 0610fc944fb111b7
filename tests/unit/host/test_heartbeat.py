"""The heartbeat of a process, in its state folder."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from control_plane.host.boot_clock import boot_time_s
from control_plane.host.heartbeat import FILE, beat


async def test_it_is_written_in_place_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("0\n")  # left behind by a process before
    begun_s, inode = boot_time_s(), (tmp_path / FILE).stat().st_ino
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(beat(tmp_path, every_s=0.01))
        seen = set[str]()
        while len(seen) < 3:
            seen.add((tmp_path / FILE).read_text())
            await asyncio.sleep(0.01)
        beating.cancel()
    seen.discard("0\n")
    assert all(len(each) == 21 and begun_s - 0.001 <= float(each) <= boot_time_s() for each in seen)
    assert (tmp_path / FILE).stat().st_ino == inode


async def test_busy_threads_do_not_stop_it(tmp_path: Path) -> None:
    """The event loop is well where all of its threads read large files."""
    read = threading.Event()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for _ in range(64):
            tasks.create_task(asyncio.to_thread(read.wait))
        try:
            await asyncio.sleep(0.05)
            beating = tasks.create_task(beat(tmp_path, every_s=0.01))
            while not (tmp_path / FILE).exists():
                await asyncio.sleep(0.01)
        finally:
            read.set()
        beating.cancel()


async def test_a_folder_that_cannot_be_written_is_told_once_and_ends_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "none"
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        with caplog.at_level(logging.WARNING):
            beating = tasks.create_task(beat(folder, every_s=0.01))
            while not caplog.records:
                await asyncio.sleep(0.01)
            folder.mkdir()
            while not (folder / FILE).exists():
                await asyncio.sleep(0.01)
        beating.cancel()
    (told,) = caplog.records
    assert "No such file" in told.getMessage()
