"""Sweeps of callers' files, which go on whatever one store has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.domain.job import Blob
from control_plane.jobs.files.callers_files import CallersFiles
from control_plane.jobs.files.domain.place import read_prefixes

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
