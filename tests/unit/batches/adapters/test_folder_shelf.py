"""The shelf after processes that were killed before any of their steps in the file system."""

from __future__ import annotations

import asyncio
import io
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from control_plane.batches.adapters.folder_shelf import FolderShelf
from control_plane.batches.domain.batch import Batch, BatchState, Chunk, Chunks, Ended, StoredFile
from control_plane.core.errors import StoreUnavailable
from control_plane.storage.file_pieces import FilePieces
from tests.full_disk import full_disk
from tests.killed import dies_before

FILE = StoredFile(f"file-{1:032x}", "team", "in.jsonl", "batch", 0, 1000.0)
BATCH = Batch(f"batch_{1:032x}", "team", "k", (), FILE.id, "m", Chunks([Chunk(1, 0, 4)]), None, 1000.0, 2000.0)
END = Ended(BatchState.COMPLETED, 1500.0, 1, 0, has_output=True, has_errors=False)
AN_HOUR_S = 3600.0

Call = Callable[[FolderShelf], Awaitable[object]]


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


def do(folder: Path, *calls: Call) -> None:
    async def main() -> None:
        shelf = FolderShelf(folder)
        for call in calls:
            await call(shelf)
        await shelf.close()

    asyncio.run(main())


def add_file(shelf: FolderShelf) -> Awaitable[object]:
    return shelf.add_file(FILE, pieces(b"line"))


def add_batch(shelf: FolderShelf) -> Awaitable[object]:
    return shelf.add_batch(BATCH)


def cancel(shelf: FolderShelf) -> Awaitable[object]:
    return shelf.cancel(BATCH, now_s=1100.0)


def end(shelf: FolderShelf) -> Awaitable[object]:
    return shelf.end(BATCH, END)


def delete(shelf: FolderShelf) -> Awaitable[object]:
    return shelf.delete_file("team", FILE.id)


def killed(folder: Path, before: tuple[Call, ...], dying: Call) -> Iterator[Path]:
    """Folders in which a process died before its first step of `dying`, before its second, and so on."""
    for step in count(1):
        own = folder / str(step)
        do(own, *before)
        if not dies_before(step, str(own), do, own, dying):
            assert step > 2, "it was killed at some steps"
            return
        yield own


def seen(folder: Path) -> tuple[StoredFile | None, Batch | None, list[Batch], Ended | None, float | None, int]:
    """What the next process finds."""
    found = []

    async def look(shelf: FolderShelf) -> None:
        found.append(
            (
                await shelf.file("team", FILE.id),
                await shelf.batch("team", BATCH.id),
                await shelf.open_batches(),
                await shelf.ended(BATCH),
                await shelf.cancelled_s(BATCH),
                await shelf.open_count("team"),
            )
        )

    do(folder, look)
    return found[0]


def left(folder: Path) -> list[str]:
    """Files that are left after an hour in which nobody came back."""
    for path in folder.rglob("*"):
        os.utime(path, (0, time.time() - 1.5 * AN_HOUR_S))
    now_s = time.time()
    do(folder, lambda shelf: shelf.remove_older(0.0, unfinished_before_s=now_s - AN_HOUR_S))
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def filled(folder: Path) -> tuple[int, int]:
    found = []

    async def look(shelf: FolderShelf) -> None:
        found.append(await shelf.filled("team"))

    do(folder, look)
    return found[0]


def test_the_input_of_an_open_batch_takes_room_once_also_without_its_file(tmp_path: Path) -> None:
    """Or a tenant could fill the disk: a batch for each file, which is deleted then."""
    assert filled(tmp_path) == (0, 0)
    do(tmp_path, add_file)
    assert filled(tmp_path) == (1, 4)
    do(tmp_path, add_batch)
    assert filled(tmp_path) == (1, 4)
    do(tmp_path, delete)
    assert filled(tmp_path) == (0, 4)
    do(tmp_path, end)
    assert filled(tmp_path) == (0, 0)


async def test_a_callers_file_leaves_room_for_what_is_written_for_him(tmp_path: Path) -> None:
    shelf = FolderShelf(tmp_path, keep_free_bytes=1 << 60)
    with pytest.raises(StoreUnavailable, match=r"\d+ MiB are free on its disk") as full:
        await shelf.add_file(FILE, pieces(b"line"))
    assert full.value.is_full
    output = replace(FILE, model="m")
    assert await shelf.add_file(output, pieces(b"line")) == replace(output, size_bytes=4)
    await shelf.close()


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    for folder in killed(tmp_path, (), add_file):
        file, *_ = seen(folder)
        assert file in (None, replace(FILE, size_bytes=4))
        assert left(folder) == ([] if file is None else ["content", "meta"])


def test_a_batch_is_accepted_whole_or_not_at_all(tmp_path: Path) -> None:
    for folder in killed(tmp_path, (add_file,), add_batch):
        _, batch, opened, *_ = seen(folder)
        assert opened == ([] if batch is None else [BATCH]), "one that is accepted is looked after"
        files = left(folder)
        assert (files, seen(folder)[-1]) == (
            (["content", "meta"], 0) if batch is None else ([BATCH.id, "content", "input", "meta", "meta"], 1)
        )


def test_a_batch_is_cancelled_or_not(tmp_path: Path) -> None:
    for folder in killed(tmp_path, (add_file, add_batch), cancel):
        *_, cancelled_s, _ = seen(folder)
        do(folder, cancel)
        assert cancelled_s in (None, 1100.0)
        assert seen(folder)[4] == 1100.0


def test_a_batch_that_has_ended_is_open_for_nobody(tmp_path: Path) -> None:
    """Its input may be gone, without which it could not be looked after."""
    for folder in killed(tmp_path, (add_file, add_batch), end):
        _, _, opened, ended, _, _ = seen(folder)
        assert opened == ([BATCH] if ended is None else [])
        do(folder, end)
        assert seen(folder)[2:] == ([], END, None, 0)
        assert left(folder) == ["content", "ended", "meta", "meta"]


def test_a_file_is_deleted_or_not(tmp_path: Path) -> None:
    for folder in killed(tmp_path, (add_file,), delete):
        file, *_ = seen(folder)
        assert left(folder) == ([] if file is None else ["content", "meta"])


@pytest.mark.parametrize("name", ["meta", "content"])
def test_what_is_still_being_written_is_left_alone(tmp_path: Path, name: str) -> None:
    do(tmp_path, add_file)
    (own,) = tmp_path.glob(f"*/{FILE.id}")
    (own / name).rename(own / ".partial")
    began_s = time.time() - 2 * AN_HOUR_S
    os.utime(own, (began_s, began_s))

    do(tmp_path, lambda shelf: shelf.remove_older(0.0, unfinished_before_s=time.time() - AN_HOUR_S))

    assert (own / ".partial").exists()


class Away(io.RawIOBase):
    """A file on a disk that does not answer until it may."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer = threading.Event(), threading.Event()
        self.has_answered = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.is_asked.set()
        self.may_answer.wait(10.0)
        self.has_answered = True
        return 0


async def test_a_reader_who_leaves_while_the_disk_does_not_answer_holds_up_nobody(tmp_path: Path) -> None:
    shelf, away = FolderShelf(tmp_path), Away()
    reader = FilePieces(io.BufferedReader(away), shelf.run, shelf._threads)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(reader.receive())
        await asyncio.to_thread(away.is_asked.wait)
        reading.cancel()
    reader.close()
    assert not away.has_answered
    away.may_answer.set()
    await shelf.close()


async def test_an_open_batch_is_read_once(tmp_path: Path) -> None:
    """Open batches are asked for many times a second, and each has up to more than a thousand chunks."""
    shelf = FolderShelf(tmp_path)
    await shelf.add_file(FILE, pieces(b"line"))
    await shelf.add_batch(BATCH)
    (first,) = await shelf.open_batches()
    (second,) = await shelf.open_batches()
    assert first == BATCH
    assert second is first
    await shelf.end(BATCH, END)
    assert await shelf.open_batches() == []
    assert shelf._open == {}
    await shelf.close()


async def test_a_batch_for_which_the_disk_has_no_room_is_not_open_and_leaves_nothing(tmp_path: Path) -> None:
    shelf = FolderShelf(tmp_path)
    await shelf.add_file(FILE, pieces(b"line"))
    large = replace(BATCH, metadata={"key": "a" * 2000})
    with pytest.raises(StoreUnavailable), full_disk():
        await shelf.add_batch(large)
    assert await shelf.open_count("team") == 0
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["content", "meta"], "the file's"
    assert await shelf.add_batch(large)
    assert await shelf.open_batches() == [large]
    await shelf.close()


async def test_a_tenants_files_are_counted_without_those_that_are_still_received(tmp_path: Path) -> None:
    shelf, counts = FolderShelf(tmp_path), []

    async def slow() -> AsyncIterator[bytes]:
        yield b"li"
        counts.append(await shelf.filled("team"))
        yield b"nes"

    await shelf.add_file(FILE, pieces(b"line"))
    await shelf.add_file(replace(FILE, id=f"file-{2:032x}"), slow())
    counts.append(await shelf.filled("team"))
    assert await shelf.delete_file("team", FILE.id)
    counts += [await shelf.filled(tenant) for tenant in ("team", "others")]
    assert counts == [(1, 4), (2, 9), (1, 5), (0, 0)]
    await shelf.close()


async def test_a_file_that_is_written_again_stays_as_it_is(tmp_path: Path) -> None:
    shelf = FolderShelf(tmp_path)
    await shelf.add_file(FILE, pieces(b"line"))
    await shelf.add_file(FILE, pieces(b"another line"))
    reader = await shelf.read_file("team", FILE.id)
    assert reader is not None
    assert await reader.receive() == b"line"
    reader.close()
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["content", "meta"]
    await shelf.close()
