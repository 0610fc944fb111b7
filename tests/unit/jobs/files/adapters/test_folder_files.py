"""Files of callers in a folder: whole ones or none, and no way out of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from control_plane.jobs.files.adapters.folder_files import FolderFiles
from control_plane.jobs.files.ports import NoSuchFile


@asynccontextmanager
async def files(root: Path) -> AsyncIterator[FolderFiles]:
    made = FolderFiles(root)
    try:
        yield made
    finally:
        await made.close()


async def test_what_is_written_is_read_and_replaced_whole(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    async with files(tmp_path / "root") as it:
        await it.write(("a", "b", "größe"), b"first")
        await it.write(("a", "b", "größe"), b"second one")
        assert (await it.version(("a", "b", "größe"))).size_bytes == 10
        assert await it.read(("a", "b", "größe"), start=0, most=6) == b"second"
        assert await it.read(("a", "b", "größe"), start=7, most=99) == b"one"
        assert [path.name for path in (tmp_path / "root" / "a" / "b").iterdir()] == ["größe"]


async def test_no_link_is_followed_out_of_it_and_nothing_but_files_is_read(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "secret").write_bytes(b"secret")
    async with files(root) as it:
        (root / "folder").symlink_to(outside)
        (root / "file").symlink_to(outside / "secret")
        (root / "inner").mkdir()
        os.mkfifo(root / "pipe")
        for path in (("folder", "secret"), ("file",), ("inner",), ("pipe",), ("missing",), ("file", "x"), ("inner", "missing")):
            with pytest.raises(NoSuchFile):
                await it.version(path)
            with pytest.raises(NoSuchFile):
                await asyncio.wait_for(it.read(path, start=0, most=9), 60)
        for path in (("folder", "new"), ("inner",)):
            with pytest.raises(NoSuchFile):
                await it.write(path, b"x")
        await it.write(("file",), b"own")
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret", "a link is replaced, not written through"
    assert (root / "file").read_bytes() == b"own"
    assert not list(root.rglob("*.partial"))


async def test_what_a_killed_process_has_left_is_swept_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.extend(path.name for path in (tmp_path / "a").iterdir()))
    async with files(tmp_path) as it:
        await it.write(("a", "out"), b"whole")
        partial = seen[0]
        assert partial != "out"
        kept = (".hidden.partial", "b.partial", f"{partial}.txt", "." + "0" * 32 + ".partial")
        for name in (partial, *kept):
            (tmp_path / "a" / name).write_bytes(b"")
        for path in (tmp_path / "a").iterdir():
            os.utime(path, (1000.0, 1000.0))
        os.utime(tmp_path / "a" / kept[-1], (2000.0, 2000.0))  # one that is being written

        await it.sweep(1001.0)
        assert {path.name for path in (tmp_path / "a").iterdir()} == {"out", *kept}


def test_a_sweep_follows_no_link(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    for folder in (outside, root):
        folder.mkdir()
    (outside / f".{'0' * 32}.partial").write_bytes(b"another's")
    (root / "link").symlink_to(outside)
    it = FolderFiles(root)
    asyncio.run(it.sweep(time.time() + 60.0))
    asyncio.run(it.close())
    assert len([*outside.iterdir()]) == 1
