from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError, StoreUnavailable
from control_plane.jobs.adapters.folder_spool import FolderSpool
from control_plane.jobs.domain.job import Blob
from control_plane.jobs.ports import SpoolDamaged
from tests.fakes.jobs import job_id
from tests.full_disk import full_disk
from tests.killed import dies_before

ONE, TWO = job_id(1), job_id(0x101)


@asynccontextmanager
async def spool_in(folder: Path, *, keep_free_bytes: int = 0) -> AsyncIterator[FolderSpool]:
    spool = FolderSpool(folder, keep_free_bytes=keep_free_bytes)
    try:
        yield spool
    finally:
        await spool.close()


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def test_what_was_written_is_read_by_its_name_and_nobody_else_may(tmp_path: Path) -> None:
    async with spool_in(tmp_path / "a" / "spool") as spool:
        blob = await spool.write(ONE, "body", [b"one", bytearray(b"two")])

        assert (blob.name, blob.size_bytes) == (f"{ONE}/body", 6)
        assert await spool.read(blob) == b"onetwo"
        assert files(tmp_path) == [f"a/spool/01/{ONE}/body"]
        assert {path.stat().st_mode & 0o077 for path in (tmp_path / "a" / "spool", tmp_path / files(tmp_path)[0])} == {0}


async def test_a_file_is_read_piece_by_piece_also_after_it_was_removed(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4096
    async with spool_in(tmp_path) as spool:
        blob = await spool.write(ONE, "result-1", [content])
        reader, found = await spool.open(blob), b""
        await spool.prune(ONE)
        while (piece := await reader.receive()) is not None:
            assert len(piece) < len(content)
            found += piece
        reader.close()
    assert found == content


@pytest.mark.parametrize(
    "content", [pytest.param(b"onetwO", id="changed"), pytest.param(b"onetw", id="cut"), pytest.param(None, id="gone")]
)
async def test_what_is_not_what_was_written_is_told(tmp_path: Path, content: bytes | None) -> None:
    async with spool_in(tmp_path) as spool:
        blob = await spool.write(ONE, "body", [b"onetwo"])
        path = tmp_path / files(tmp_path)[0]
        path.unlink() if content is None else path.write_bytes(content)
        for read in (spool.read, spool.open):
            with pytest.raises(SpoolDamaged):
                await read(blob)


async def test_new_work_leaves_room_for_results(tmp_path: Path) -> None:
    async with spool_in(tmp_path, keep_free_bytes=1 << 60) as spool:
        for taking in (spool.write(ONE, "body", [b"one"], is_new=True), spool.receive(ONE, "body", in_pieces(b"one"))):
            with pytest.raises(StoreUnavailable, match=r"the spool of jobs: \d+ MiB are free on its disk, and 1099511627776 MiB") as full:
                await taking
            assert full.value.is_full
        assert files(tmp_path) == []
        assert await spool.read(await spool.write(ONE, "result-1", [b"one"])) == b"one"


async def test_pruning_keeps_one_file_or_none_and_other_jobs_alone(tmp_path: Path) -> None:
    async with spool_in(tmp_path) as spool:
        await spool.write(ONE, "body", [b"a"])
        kept, other = await spool.write(ONE, "result-1", [b"b"]), await spool.write(TWO, "body", [b"c"])

        await spool.prune(ONE, keep=kept.name)
        assert files(tmp_path) == [f"01/{ONE}/result-1", f"01/{TWO}/body"]
        await spool.prune(ONE)
        await spool.prune(ONE)
        assert files(tmp_path) == [f"01/{TWO}/body"]
        assert await spool.read(other) == b"c"
        await spool.prune(ONE, keep=kept.name)


async def test_a_file_its_folder_and_whatever_was_made_for_it_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test cannot cut the power; these are the flushes after which it could be."""
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    root = tmp_path / "spool"

    async with spool_in(root) as spool:
        assert list(root.iterdir()) == [], "a start makes none of the 256 folders that jobs are in"
        await spool.write(ONE, "body", [b"one"])
        assert flushed[1:] == [str(root / "01" / ONE), str(root), str(root / "01")]
        assert flushed[0].startswith(str(root / "01" / ONE / "."))
        flushed.clear()
        await spool.write(ONE, "result-1", [b"two"])
        assert flushed[1:] == [str(root / "01" / ONE)], "the rest was there"

    async with spool_in(root) as other:
        flushed.clear()
        await other.write(TWO, "body", [b"one"])
        assert flushed[1:] == [str(root / "01" / TWO), str(root), str(root / "01")], "whoever made it may have ended before its flush"

        shutil.rmtree(root)
        flushed.clear()
        await other.write(TWO, "body", [b"one"])
        assert flushed[1:] == [str(root / "01" / TWO), str(tmp_path), str(root), str(root / "01")]


async def test_jobs_without_news_are_listed(tmp_path: Path) -> None:
    async with spool_in(tmp_path) as spool:
        for name in (ONE, TWO):
            await spool.write(name, "body", [b"a"])
        for path in (tmp_path / "01" / ONE / "body", tmp_path / "01" / ONE):
            os.utime(path, (1000.0, 1000.0))
        (tmp_path / "01" / "job-of-somebody-else").mkdir()

        assert await spool.jobs("01", before_s=1001.0) == [ONE]
        (tmp_path / "somebody-elses").mkdir()
        assert await spool.parts() == ["01"]


@pytest.mark.parametrize(("job", "name"), [("../../etc", "body"), (ONE, "../body"), (ONE, ".."), (ONE, ""), ("job-1", "body")])
async def test_no_name_leads_out_of_the_spool(tmp_path: Path, job: str, name: str) -> None:
    async with spool_in(tmp_path) as spool:
        with pytest.raises(ValueError, match="is no name in the spool"):
            await spool.write(job, name, [b"a"])
        with pytest.raises(ValueError, match="is no name in the spool"):
            await spool.read(Blob(f"{job}/{name}", 1, ""))


async def test_a_write_that_fails_leaves_nothing_and_says_whether_the_disk_is_full(tmp_path: Path) -> None:
    """/dev/full is a file on which every write finds the disk full."""
    async with spool_in(tmp_path) as spool:
        blob = await spool.write(ONE, "body", [b"a"])
        with pytest.raises(StoreUnavailable, match=r"^the spool of jobs: [^/]+$"), full_disk():
            await spool.write(ONE, "result-1", [b"b" * 4096])
        assert files(tmp_path) == [f"01/{ONE}/body"]
        assert await spool.read(replace(blob)) == b"a"


async def in_pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_what_is_received_in_pieces_is_what_was_written_whole(tmp_path: Path) -> None:
    async with spool_in(tmp_path) as spool:
        blob = await spool.receive(ONE, "body", in_pieces(b"one", b"", b"two"))

        assert blob == await spool.write(ONE, "body", [b"onetwo"])
        assert await spool.read(blob) == b"onetwo"
        assert files(tmp_path) == [f"01/{ONE}/body"]


async def test_of_a_file_whose_pieces_stop_coming_nothing_is_left(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"one"
        raise ConnectionError

    async with spool_in(tmp_path) as spool:
        with pytest.raises(ConnectionError):
            await spool.receive(ONE, "body", broken())
        with pytest.raises(StoreUnavailable), full_disk():
            await spool.receive(ONE, "body", in_pieces(b"b" * 4096, b"b" * (16 << 20)))
        assert [*(tmp_path / "01").iterdir()] == []


async def test_a_file_that_is_still_received_is_not_one_that_nobody_looks_after(tmp_path: Path) -> None:
    """The folder's own time stands still from the first piece on, however long the others take."""
    async with spool_in(tmp_path) as spool:
        found: list[list[str]] = []

        async def slow() -> AsyncIterator[bytes]:
            yield b"one"
            for path in (tmp_path / "01" / ONE, *(tmp_path / "01" / ONE).iterdir()):
                os.utime(path, (1000.0, 1000.0))
            found.append(await spool.jobs("01", before_s=1001.0))
            yield b"two" * 10_000
            os.utime(tmp_path / "01" / ONE, (1000.0, 1000.0))
            found.append(await spool.jobs("01", before_s=1001.0))

        await spool.receive(ONE, "body", slow())
        assert found == [[ONE], []]


def test_a_place_that_cannot_be_used_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="TIDEGATE_JOBS_SPOOL"):
        FolderSpool(tmp_path / "file" / "spool")


def write_a_body(spool: FolderSpool) -> None:
    asyncio.run(spool.write(ONE, "body", [b"one", b"two"]))


def receive_a_body(spool: FolderSpool) -> None:
    asyncio.run(_receive(spool))


async def _receive(spool: FolderSpool) -> None:
    await spool.receive(ONE, "body", in_pieces(b"one", b"two"))


@pytest.mark.parametrize("write", [write_a_body, receive_a_body])
def test_a_file_of_a_process_that_was_killed_is_there_whole_or_not_at_all(tmp_path: Path, write: Callable[[FolderSpool], None]) -> None:
    """Killed before each of its steps in the file system; what is left goes with the job's other files."""
    for step in count(1):
        folder = tmp_path / str(step)
        spool = FolderSpool(folder)
        if not dies_before(step, str(folder), write, spool):
            break
        assert [(tmp_path / name).read_bytes() for name in files(tmp_path) if name.endswith("/body")] in ([], [b"onetwo"])
        asyncio.run(spool.prune(ONE))
        assert files(tmp_path) == []
    assert step > 4, "it was killed before the folder was made, the file opened and renamed, and a folder flushed"
