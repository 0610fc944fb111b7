"""What every store of jobs' files does: a folder, and a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.files.adapters.folder_files import FolderFiles
from control_plane.jobs.files.adapters.object_files import ObjectFiles
from control_plane.jobs.files.ports import FileStore, NoSuchFile
from tests.s3_server import BUCKET, SECRET, S3Server, s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileStore:
    if request.param == "folder":
        return FolderFiles(tmp_path)
    for name, value in request.getfixturevalue("s3").environment().items():
        monkeypatch.setenv(name, value)
    return ObjectFiles(f"s3://{BUCKET}/jobs")


async def test_files_are_written_whole_and_read_in_part(store: FileStore) -> None:
    content = bytes(range(256)) * 8192
    try:
        for each in (b"before", content):
            await store.write(("acme", "a b ü.json"), each)
        assert (await store.version(("acme", "a b ü.json"))).size_bytes == len(content)
        assert await store.read(("acme", "a b ü.json"), start=0, most=300) == content[:300]
        assert await store.read(("acme", "a b ü.json"), start=300, most=len(content)) == content[300:]
        await store.write(("empty",), b"")
        assert (await store.version(("empty",))).size_bytes == 0
    finally:
        await store.close()


async def test_a_file_that_is_written_anew_is_another_version_of_it(store: FileStore) -> None:
    try:
        await store.write(("a",), b"first")
        first = await store.version(("a",))
        assert await store.version(("a",)) == first
        await store.write(("a",), b"other")
        assert await store.version(("a",)) != first
    finally:
        await store.close()


async def test_what_is_not_there_and_what_is_no_file(store: FileStore) -> None:
    try:
        await store.write(("folder", "a"), b"x")
        for path in (("missing",), ("folder",), ("folder", "a", "b"), ("missing", "a")):
            with pytest.raises(NoSuchFile):
                await store.version(path)
    finally:
        await store.close()


async def test_a_store_that_is_away_is_said_without_its_credentials(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment(port=9).items():
        monkeypatch.setenv(name, value)
    store = ObjectFiles(f"s3://{BUCKET}/jobs")
    try:
        with pytest.raises(StoreUnavailable) as away:
            await store.version(("a",))
        assert SECRET not in str(away.value)
        assert "127.0.0.1" not in str(away.value), "nor where it is"
    finally:
        await store.close()
