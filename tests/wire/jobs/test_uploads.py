"""Uploads to `/v1/files` go to disk as they arrive: bounded in memory, in size and in time, and nothing stays of one that
is not whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from control_plane.batches.adapters.folder_shelf import FolderShelf
from control_plane.batches.domain.batch import StoredFile
from control_plane.batches.files import Files
from control_plane.frontends.batches.http import BatchesHttp
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.mirror import ObjectMirror
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.unit.batches.world import batches_of
from tests.unit.jobs.world import world
from tests.wire.gateway import LIMITS, LIVE, Answer, Gateway, gateway
from tests.wire.jobs.uploads_bench import refused

MOST_BYTES = 4 << 20
PURPOSE = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
END = b"\r\n--b--\r\n"


class Watched:
    """Shelf that says when a piece has come, and when a file has ended."""

    def __init__(self, shelf: FolderShelf) -> None:
        self._shelf = shelf
        self.has_taken, self.has_ended = asyncio.Event(), asyncio.Event()

    async def add_file(self, file: StoredFile, pieces: AsyncIterator[bytes]) -> StoredFile:
        async def watched() -> AsyncIterator[bytes]:
            async for piece in pieces:
                self.has_taken.set()
                yield piece

        try:
            return await self._shelf.add_file(file, watched())
        finally:
            self.has_ended.set()

    def __getattr__(self, name: str) -> object:
        return getattr(self._shelf, name)


@dataclass
class Here:
    frontend: Gateway
    shelf: Watched
    folder: Path
    known: ObjectMirror

    def files(self) -> list[str]:
        """What is on disk of files, finished or not."""
        return sorted(path.name for path in self.folder.rglob("*") if path.is_file())


@asynccontextmanager
async def serving(tmp_path: Path, *, quota_bytes: int = 1 << 30, body_timeout_s: float = 60.0) -> AsyncIterator[Here]:
    folder = tmp_path / "files"
    shelf = FolderShelf(folder)
    watched = Watched(shelf)
    known = known_state(keys=(api_key(1, "infer:*"),), tenants=(Tenant("team"),))
    governed = governance(known, authentication=True)
    async with world(tmp_path / "jobs") as here:
        files = Files(watched, max_bytes=quota_bytes)  # type: ignore[arg-type]
        limits = replace(LIMITS, max_upload_bytes=MOST_BYTES, body_timeout_s=body_timeout_s)
        async with gateway(governed=governed, limits=limits, batches=BatchesHttp(files, batches_of(here, shelf, files))) as frontend:
            yield Here(frontend, watched, folder, known)
    await shelf.close()


def head(size_bytes: int | None, *more: bytes, key: int = 1) -> bytes:
    framing = b"Transfer-Encoding: chunked" if size_bytes is None else b"Content-Length: %d" % size_bytes
    fields = (
        b"Host: localhost",
        b"Authorization: Bearer " + key_text(key).encode(),
        b"Content-Type: multipart/form-data; boundary=b",
        framing,
        *more,
    )
    return b"POST /v1/files HTTP/1.1\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def form(content_bytes: int, *, purpose: bytes = PURPOSE) -> bytes:
    return purpose + FILE + b"x" * content_bytes + END


@pytest.mark.parametrize("content_bytes", [10, 100_000, 3 << 20])
async def test_an_upload_becomes_a_file_and_its_connection_is_kept(tmp_path: Path, content_bytes: int) -> None:
    async with serving(tmp_path) as it:
        client = await it.frontend.connect()
        body = form(content_bytes)
        answer = await client.ask(head(len(body)) + body)

        assert (answer.status, b'"bytes":%d' % content_bytes in answer.body) == (200, True), answer
        assert it.files() == ["content", "meta"]
        assert (await client.ask(LIVE)).status == 200


async def test_a_request_that_is_sent_right_after_an_upload_is_answered_after_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        client = await it.frontend.connect()
        body = form(100_000)
        answer = await client.ask(head(len(body)) + body + LIVE)

        assert (answer.status, b'"bytes":100000' in answer.body) == (200, True)
        live = await client.answer()
        assert (live.status, live.body) == (200, b"")


@pytest.mark.parametrize("chunk_bytes", [7, 100_000])
async def test_a_chunked_upload_is_one_too(tmp_path: Path, chunk_bytes: int) -> None:
    async with serving(tmp_path) as it:
        client, body = await it.frontend.connect(), form(200_000)
        client.writer.write(head(None))
        for at in range(0, len(body), chunk_bytes):
            piece = body[at : at + chunk_bytes]
            client.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        answer = await client.ask(b"0\r\n\r\n" + LIVE)

        assert (answer.status, b'"bytes":200000' in answer.body) == (200, True), answer
        assert (await client.answer()).status == 200


async def test_the_client_waits_for_continue_and_is_told_to(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        client, body = await it.frontend.connect(), form(100_000)
        await client.send(head(len(body), b"Expect: 100-continue"))
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.ask(body)).status == 200


async def test_nothing_stays_of_an_upload_whose_client_has_left(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        client, body = await it.frontend.connect(), form(1_000_000)
        await client.send((head(len(body)) + body)[:-100])
        await it.shelf.has_taken.wait()
        await client.close()
        await it.shelf.has_ended.wait()

        assert it.files() == []


async def test_an_upload_ends_with_its_key(tmp_path: Path) -> None:
    """Within a second, as streams do: a slow one could else go on for days."""
    async with serving(tmp_path) as it:
        client, body = await it.frontend.connect(), form(1_000_000)
        await client.send((head(len(body)) + body)[:-100])
        await it.shelf.has_taken.wait()
        it.known.keys, it.known.generation = {}, it.known.generation + 1
        answer = await client.answer()

        assert (answer.status, answer.says_close) == (401, True)
        assert it.files() == []


@pytest.mark.parametrize(
    ("pieces", "status", "said"),
    [
        pytest.param((head(MOST_BYTES + 1),), 413, b"TIDEGATE_JOBS_MAX_UPLOAD_BYTES", id="announced"),
        pytest.param((head(None), b"%x\r\n" % (MOST_BYTES + 1), form(MOST_BYTES)), 413, b"TIDEGATE_JOBS_MAX_UPLOAD", id="chunked"),
        pytest.param((head(100_000, key=2), form(99_000)[:1000]), 401, b"key", id="nobody"),
        pytest.param((head(4_000_000), form(MOST_BYTES)[:3_500_000]), 429, b"delete some first", id="quota"),
        pytest.param((head(100_000), b"{" * 1000), 400, b"does not begin with the boundary", id="no-form"),
        pytest.param((head(100_000), PURPOSE.replace(b"batch", b"fine-tune") + FILE), 400, b"got 'fine-tune'", id="purpose"),
        pytest.param((head(None), b"zz\r\n"), 400, b"not a well-formed", id="no-chunk"),
    ],
)
async def test_what_is_refused_is_told_early_and_leaves_nothing(
    tmp_path: Path, pieces: tuple[bytes, ...], status: int, said: bytes
) -> None:
    async with serving(tmp_path, quota_bytes=3_000_000 if status == 429 else 1 << 30) as it:
        answer = await refused(await it.frontend.connect(), *pieces)

        assert (answer.status, said in answer.body) == (status, True), answer
        assert it.files() == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(form(100_000, purpose=b""), b"must have a field 'purpose'", id="no-purpose"),
        pytest.param(PURPOSE + END[2:] + b"x" * 100_000, b"must have a file", id="no-file"),
        pytest.param(form(100_000)[:-5], b"ends within a field", id="cut"),
        pytest.param(FILE + b"x" * 100_000 + b"\r\n" + PURPOSE.replace(b"batch", b"x") + END[2:], b"got 'x'", id="purpose-last"),
        pytest.param(form(0)[: -len(END)] + END + b"x" * 100_000, b"the file is empty", id="empty"),
    ],
)
async def test_what_shows_at_the_end_to_be_wrong_leaves_nothing(tmp_path: Path, body: bytes, said: bytes) -> None:
    async with serving(tmp_path) as it:
        client = await it.frontend.connect()
        answer = await client.ask(head(len(body)) + body)

        assert (answer.status, said in answer.body) == (400, True), answer
        assert it.files() == []


async def test_uploads_at_the_same_time_share_the_tenants_room(tmp_path: Path) -> None:
    async with serving(tmp_path, quota_bytes=3_000_000) as it:
        clients = [await it.frontend.connect() for _ in range(3)]
        body = form(1_400_000)
        answers = await asyncio.gather(*(client.ask(head(len(body)) + body) for client in clients), return_exceptions=True)

        assert sorted(answer.status for answer in answers if isinstance(answer, Answer)) == [200, 200, 429]
        assert it.files() == ["content", "content", "meta", "meta"]


async def test_an_upload_that_stands_still_is_ended(tmp_path: Path) -> None:
    async with serving(tmp_path, body_timeout_s=0.2) as it:
        client, body = await it.frontend.connect(), form(1_000_000)
        await client.send((head(len(body)) + body)[:200_000])
        answer = await client.answer()

        assert (answer.status, b"came too slowly" in answer.body) == (408, True)
        assert it.files() == []


async def test_a_file_that_is_larger_than_memory_is_read_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        client, body = await it.frontend.connect(), form(1_000_000)
        answer = await client.ask(head(len(body)) + body)
        file_id = answer.body.partition(b'"id":"')[2].partition(b'"')[0]
        await client.send(b"GET /v1/files/%b/content HTTP/1.1\r\nHost: a\r\nX-Api-Key: %b\r\n\r\n" % (file_id, key_text(1).encode()))
        got = await client.reader.readuntil(b"\r\n\r\n")
        content, size_bytes = b"", -1
        while size_bytes:
            size_bytes = int(await client.reader.readuntil(b"\r\n"), 16)
            content += (await client.reader.readexactly(size_bytes + 2))[:-2]

        assert b"Transfer-Encoding: chunked" in got
        assert content == b"x" * 1_000_000


async def test_a_head_request_for_a_files_content_is_answered_by_a_head_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        client, body = await it.frontend.connect(), form(100_000)
        answer = await client.ask(head(len(body)) + body)
        file_id = answer.body.partition(b'"id":"')[2].partition(b'"')[0]
        asked = b"HEAD /v1/files/%b/content HTTP/1.1\r\nHost: a\r\nX-Api-Key: %b\r\n\r\n" % (file_id, key_text(1).encode())
        await client.send(asked + LIVE)

        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream")
        # Content that a caller chose would else be read as the answer to the next request, which may be another caller's.
        live = await client.answer()
        assert (live.status, live.body) == (200, b"")
