"""Files that are received at the same time are bounded: of one tenant, and of all together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from control_plane.batches.domain.batch import StoredFile
from control_plane.batches.files import Files
from control_plane.core.errors import LimitExceeded, Overloaded, StoreUnavailable
from control_plane.core.principal import Principal
from control_plane.core.scope import Scopes, parse_scope
from control_plane.jobs.upload_slots import MAX_UPLOADS, MAX_UPLOADS_OF_TENANT
from tests.aio import settle


class SlowShelf:
    """A shelf whose disk writes nothing until it may."""

    def __init__(self) -> None:
        self.may_write = asyncio.Event()

    async def filled(self, tenant: str) -> tuple[int, int]:
        return 0, 0

    async def add_file(self, file: StoredFile, pieces: AsyncIterator[bytes]) -> StoredFile:
        async for _ in pieces:
            await self.may_write.wait()
        return file


async def content() -> AsyncIterator[bytes]:
    yield b"x"


async def test_uploads_at_a_time_are_bounded_and_those_that_end_make_room() -> None:
    shelf = SlowShelf()
    adapter: Any = shelf
    files = Files(adapter, max_bytes=1 << 20)

    async def add(tenant: str) -> StoredFile:
        return await files.add(Principal(tenant, "k", Scopes((parse_scope("infer:*"),))), filename="f", content=content())

    async with asyncio.TaskGroup() as tasks:
        first = [tasks.create_task(add("one")) for _ in range(MAX_UPLOADS_OF_TENANT)]
        await settle()
        with pytest.raises(LimitExceeded, match="sends 32 large bodies already"):
            await add("one")
        first[0].cancel()
        await settle()
        tasks.create_task(add("one"))
        for number in range(MAX_UPLOADS - MAX_UPLOADS_OF_TENANT):
            tasks.create_task(add(f"other {number}"))
        await settle()
        with pytest.raises(Overloaded):
            await add("another")
        shelf.may_write.set()
    await add("one")


async def test_an_upload_that_a_full_disk_has_ended_takes_no_room_from_the_next() -> None:
    class Full(SlowShelf):
        is_full = True

        async def add_file(self, file: StoredFile, pieces: AsyncIterator[bytes]) -> StoredFile:
            async for _ in pieces:
                if self.is_full:
                    raise StoreUnavailable("the disk is full", is_full=True)
            return file

    shelf = Full()
    adapter: Any = shelf
    files, caller = Files(adapter, max_bytes=1), Principal("one", "k", Scopes((parse_scope("infer:*"),)))
    with pytest.raises(StoreUnavailable):
        await files.add(caller, filename="f", content=content())
    shelf.is_full = False
    await files.add(caller, filename="f", content=content())


class LateShelf:
    """A shelf that has a file some time after its last piece."""

    def __init__(self) -> None:
        self.has_all = asyncio.Event()
        self.may_end = asyncio.Event()
        self.kept: list[StoredFile] = []

    async def filled(self, tenant: str) -> tuple[int, int]:
        return len(self.kept), sum(file.size_bytes for file in self.kept)

    async def add_file(self, file: StoredFile, pieces: AsyncIterator[bytes]) -> StoredFile:
        size_bytes = sum([len(piece) async for piece in pieces])
        self.has_all.set()
        await self.may_end.wait()
        self.kept.append(replace(file, size_bytes=size_bytes))
        return self.kept[-1]


async def test_a_file_takes_room_until_the_shelf_has_it_and_once_afterwards() -> None:
    shelf = LateShelf()
    adapter: Any = shelf
    files = Files(adapter, max_bytes=20)
    principal = Principal("one", "k", Scopes((parse_scope("infer:*"),)))

    async def upload(size_bytes: int) -> AsyncIterator[bytes]:
        yield bytes(size_bytes)

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(files.add(principal, filename="f", content=upload(10)))
        await shelf.has_all.wait()
        second = tasks.create_task(files.add(principal, filename="f", content=upload(10)))
        await settle()
        with pytest.raises(LimitExceeded):
            await files.add(principal, filename="f", content=upload(1))
        shelf.may_end.set()
        await asyncio.wait([first, second])
    with pytest.raises(LimitExceeded, match="2 files with 20 bytes"):
        await files.add(principal, filename="f", content=upload(1))
