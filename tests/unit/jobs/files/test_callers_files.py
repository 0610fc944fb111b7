"""Sweeps of callers' files, which go on whatever one store has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from control_plane.core.errors import InvalidRequest, StoreUnavailable
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.jobs.domain.job import Blob
from control_plane.jobs.files.callers_files import CallersFiles
from control_plane.jobs.files.domain.place import read_prefixes
from control_plane.jobs.files.ports import FileVersion

pytestmark = pytest.mark.virtual_time


class Store:
    """A store whose sweeps end with these errors, one after the other, and then well."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.sweeps = 0

    async def sweep(self, before_s: float) -> None:
        self.sweeps += 1
        if self.errors:
            raise self.errors.pop(0)


async def read_result(blob: Blob) -> bytes:
    raise AssertionError


async def swept(urls: Sequence[str], **stores: Any) -> None:
    """Let the sweeps of some hours go by."""
    callers = CallersFiles(read_prefixes(urls), lambda prefix: stores[prefix.url.strip("/")], read_result=read_result)
    task = asyncio.get_running_loop().create_task(callers.run())
    await asyncio.sleep(3 * 3600.0)
    assert not task.done(), "the gateway would end with it"
    task.cancel()
    await asyncio.wait([task])


async def test_a_store_that_cannot_be_swept_ends_no_gateway_and_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    deep, well = Store(StoreUnavailable("away"), RecursionError("folders in folders")), Store()
    await swept(["/deep", "/well"], deep=deep, well=well)
    assert (deep.sweeps, well.sweeps) == (3, 3)
    assert [(each.levelname, "/deep is not swept" in each.message) for each in caplog.records] == [("WARNING", True), ("ERROR", True)]


class Slow(Store):
    """A store with one file of five bytes, in one version after the other; each piece takes its time."""

    def __init__(self, *marks: str, piece_s: float = 0.0) -> None:
        super().__init__()
        self._marks, self._piece_s = list(marks), piece_s

    async def version(self, path: Sequence[str]) -> FileVersion:
        return FileVersion(5, self._marks.pop(0))

    async def read(self, path: Sequence[str], *, start: int, most: int) -> bytes:
        await asyncio.sleep(self._piece_s)
        return b"12345"[start : start + most]


async def received(store: Any) -> bytes:
    async def room(size_bytes: int) -> None:
        assert size_bytes == 5

    callers = CallersFiles(read_prefixes(["/data"]), lambda prefix: store, read_result=read_result)
    whole, budget = b"", BodyBudget(5)
    try:
        async with callers.input("team", "/data/in", max_bytes=5, budget=budget, require_room=room) as found:
            while (piece := await found.receive()) is not None:
                whole += piece
    finally:
        assert budget.held_bytes == 0
    return whole


async def test_an_input_is_read_piece_by_piece_in_one_version_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control_plane.jobs.files.callers_files._PIECE_BYTES", 2)
    assert await received(Slow("a", "a", piece_s=30.0)) == b"12345"
    with pytest.raises(InvalidRequest, match="was changed while it was read"):
        await received(Slow("a", "b"))
    with pytest.raises(StoreUnavailable, match="has not answered for 100 s"):
        await received(Slow("a", "a", piece_s=40.0))
