"""Object stores that do not answer, or with an error that is none of a caller's business."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.files.adapters.object_files import ObjectFiles
from tests.aio import settle


class Away:
    """A client of a store that does not answer until it may."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.has_held_up_others = False

    def info(self, key: str) -> dict[str, Any]:
        if not self.may_answer.wait(10.0):
            self.has_held_up_others = True
            self.may_answer.set()
        return {"type": "file", "size": len(key)}


async def test_they_hold_none_of_the_threads_that_others_need() -> None:
    files, away = ObjectFiles("memory://jobs"), Away()
    files._fs = away
    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(files.version(("a",))) for _ in range(64)]
        await settle()
        await asyncio.to_thread(away.may_answer.set)
    assert not away.has_held_up_others
    assert len({await each for each in asking}) == 1
    await files.close()


class Closed:
    """A client whose store lets nobody in."""

    def info(self, key: str) -> dict[str, Any]:
        raise ConnectionError(f"Could not connect to http://minio.internal:9000/{key}")


async def test_where_a_store_is_stands_in_the_log_once_and_is_not_told_to_callers(caplog: pytest.LogCaptureFixture) -> None:
    files = ObjectFiles("memory://jobs")
    working, files._fs = files._fs, Closed()
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as refused:
            await files.version(("a",))
        assert str(refused.value) == "the store of files cannot be used (ConnectionError); the gateway's log says more"
    assert [record.getMessage().count("minio.internal:9000") for record in caplog.records] == [1]
    files._fs = working
    await files.write(("a",), b"x")
    files._fs = Closed()
    with pytest.raises(StoreUnavailable):
        await files.version(("a",))
    assert len(caplog.records) == 2, "it was used meanwhile"
    await files.close()


class Noted:
    """A client that notes how it is to write."""

    def __init__(self) -> None:
        self.options: list[dict[str, Any]] = []

    def pipe_file(self, key: str, content: bytes, **options: Any) -> None:
        self.options.append(options)


@pytest.mark.parametrize(
    ("url", "options"),
    [pytest.param("s3://bucket/jobs", {"chunksize": 5 << 30}, id="s3"), pytest.param("memory://jobs", {}, id="another")],
)
async def test_an_object_is_written_by_one_request_of_which_nothing_stays_where_it_is_cut_off(url: str, options: dict[str, Any]) -> None:
    pytest.importorskip("s3fs")
    files, noted = ObjectFiles(url), Noted()
    files._fs = noted
    await files.write(("a",), b"x")
    assert noted.options == [options]
    await files.close()
