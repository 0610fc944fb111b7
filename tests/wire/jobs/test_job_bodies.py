"""Large bodies of jobs go to the spool as they arrive: bounded in memory, in size and in time, and nothing stays of one that
is not whole.
"""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import orjson
import pytest

from control_plane.core.errors import StoreUnavailable
from control_plane.frontends.jobs.http import JobsHttp
from control_plane.jobs.domain.job import Blob
from control_plane.jobs.ports import Bounds, JobTotals
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.mirror import ObjectMirror
from control_plane.protocols.http1 import make_answer
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.fakes.jobs import ROOMY
from tests.unit.jobs.world import World, running, world
from tests.wire.gateway import INFER, LIMITS, LIVE, Gateway, gateway
from tests.wire.jobs.uploads_bench import refused

MOST_BYTES = 2 << 20
KEY = b"Authorization: Bearer " + key_text(1).encode() + b"\r\n"


@dataclass
class Here:
    frontend: Gateway
    world: World
    known: ObjectMirror
    has_taken: asyncio.Event
    """Set once a piece of a body has come."""
    has_ended: asyncio.Event
    """Set once a body has come, or will not."""

    def left(self) -> list[str]:
        """What is in the spool, finished or not."""
        return sorted(str(path) for path in (self.world.folder / "spool").glob("*/*"))


@asynccontextmanager
async def serving(
    tmp_path: Path, *, bounds: Bounds = ROOMY, body_timeout_s: float = 60.0, most_bytes: int = MOST_BYTES
) -> AsyncIterator[Here]:
    known = known_state(keys=(api_key(1, "infer:*"),), tenants=(Tenant("team"),))
    async with world(tmp_path) as here:
        receive, has_taken, has_ended = here.spool.receive, asyncio.Event(), asyncio.Event()

        async def watched(job_id: str, name: str, pieces: AsyncIterator[bytes | bytearray]) -> Blob:
            async def noted() -> AsyncIterator[bytes | bytearray]:
                async for piece in pieces:
                    yield piece
                    has_taken.set()

            try:
                return await receive(job_id, name, noted())
            finally:
                has_ended.set()

        here.spool.receive = watched  # type: ignore[method-assign]
        limits = replace(LIMITS, max_body_bytes=most_bytes, body_timeout_s=body_timeout_s)
        governed = governance(known, authentication=True)
        async with gateway(governed=governed, limits=limits, jobs=JobsHttp(here.jobs(bounds=bounds))) as frontend:
            yield Here(frontend, here, known, has_taken, has_ended)


def head(size_bytes: int | None, *more: bytes) -> bytes:
    framing = b"Transfer-Encoding: chunked" if size_bytes is None else b"Content-Length: %d" % size_bytes
    fields = b"".join(field + b"\r\n" for field in (framing, *more))
    return b"POST /v2/models/m/jobs HTTP/1.1\r\nHost: a\r\n" + KEY + fields + b"\r\n"


def body_of(size_bytes: int) -> bytes:
    return INFER + bytes(range(256)) * (size_bytes // 256)


def chunked(body: bytes, chunk_bytes: int) -> bytes:
    pieces = (body[at : at + chunk_bytes] for at in range(0, len(body), chunk_bytes))
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("size_bytes", "chunk_bytes"),
    [
        pytest.param(70_000, None, id="just-large"),
        pytest.param(1_500_000, None, id="large"),
        pytest.param(0, 10, id="small-in-chunks"),
        pytest.param(200_000, 7, id="in-tiny-chunks"),
        pytest.param(1_500_000, 100_000, id="in-chunks"),
    ],
)
async def test_a_body_is_computed_as_it_was_sent_and_its_connection_is_kept(
    tmp_path: Path, size_bytes: int, chunk_bytes: int | None
) -> None:
    async with serving(tmp_path) as it:
        client, body = await it.frontend.connect(), body_of(size_bytes)
        sent = head(len(body)) + body if chunk_bytes is None else head(None) + chunked(body, chunk_bytes)
        accepted = await client.ask(sent + LIVE)
        assert accepted.status == 202, accepted
        assert (await client.answer()).status == 200
        job = await it.world.job(orjson.loads(accepted.body)["id"])
        assert (job.body.size_bytes, job.body.sha256) == (len(body), sha256(body).hexdigest())
        async with running(it.world.runner()):
            result = await client.ask(f"GET /v2/jobs/{job.id}/result HTTP/1.1\r\nHost: a\r\nPrefer: wait=60\r\n".encode() + KEY + b"\r\n")
        assert result.body == body


async def test_a_large_result_is_sent_to_http_1_0_too_and_to_who_waits_for_it_with_the_submission(tmp_path: Path) -> None:
    async with serving(tmp_path) as it, running(it.world.runner()):
        body = body_of(100_000)
        it.world.compute.answer = lambda job, sent: make_answer(200, body)
        client = await it.frontend.connect()
        waited = await client.ask(head(len(INFER), b"Prefer: wait=60") + INFER)
        assert (waited.status, waited.body, b"\r\nPreference-Applied: wait=60\r\n" in waited.head) == (200, body, True)
        (job,) = await it.world.store.jobs_of(None, state=None, before="", limit=9)
        old = await client.ask(f"GET /v2/jobs/{job.id}/result HTTP/1.0\r\nHost: a\r\n".encode() + KEY + b"\r\n")
        assert (old.status, old.body, await client.is_closed_by_server()) == (200, body, True)


async def test_a_compressed_body_is_kept_as_it_came_with_what_describes_it(tmp_path: Path) -> None:
    """Inflated it is when it is computed, within the limits of then."""
    async with serving(tmp_path) as it:
        body = gzip.compress(INFER, compresslevel=0) * 1000
        accepted = await (await it.frontend.connect()).ask(head(len(body), b"Content-Encoding: gzip") + body)
        job = await it.world.job(orjson.loads(accepted.body)["id"])
        assert await it.world.spool.read(job.body) == body
        assert ("Content-Encoding", "gzip") in job.headers


async def test_the_client_waits_for_continue_and_is_told_to(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        client, body = await it.frontend.connect(), body_of(100_000)
        await client.send(head(len(body), b"Expect: 100-continue"))
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.ask(body)).status == 202


@pytest.mark.parametrize(
    ("pieces", "status", "said"),
    [
        pytest.param((head(MOST_BYTES + 1),), 413, b"TIDEGATE_MAX_BODY_BYTES", id="announced"),
        pytest.param((head(None), b"%x\r\n" % (MOST_BYTES + 1), bytes(MOST_BYTES + 1)), 413, b"TIDEGATE_MAX_BODY_BYTES", id="chunked"),
        pytest.param((head(100_000).replace(KEY, b""), bytes(1000)), 401, b"key", id="nobody"),
        pytest.param((head(1_500_000), bytes(100_000)), 429, b"as many as may be", id="no-room-announced"),
        pytest.param((head(None), b"%x\r\n" % 1_500_000, bytes(1_400_000)), 429, b"as many as may be", id="no-room-chunked"),
        pytest.param((head(100_000, b"tidegate-job-class: gold"), bytes(1000)), 400, b"tidegate-job-class", id="header"),
        pytest.param((head(100_000, b"tidegate-job-input: /a"), bytes(99_000)), 400, b"TIDEGATE_JOBS_STORES", id="input"),
        pytest.param((head(None), b"zz\r\n"), 400, b"not a well-formed", id="no-chunk"),
    ],
)
async def test_what_is_refused_is_told_early_and_leaves_nothing(
    tmp_path: Path, pieces: tuple[bytes, ...], status: int, said: bytes
) -> None:
    room_bytes = 1_200_000 if status == 429 else 1 << 30
    async with serving(tmp_path, bounds=Bounds(JobTotals(9, room_bytes), JobTotals(9, 1 << 30))) as it:
        answer = await refused(await it.frontend.connect(), *pieces)
        assert (answer.status, said in answer.body) == (status, True), answer
        assert it.left() == []


async def test_nothing_stays_of_a_body_whose_client_has_left(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        client = await it.frontend.connect()
        await client.send(head(1_000_000) + bytes(900_000))
        await it.has_taken.wait()
        await client.close()
        await it.has_ended.wait()
        assert it.left() == []
        assert await it.world.store.jobs_of(None, state=None, before="", limit=9) == []


async def test_a_body_ends_with_its_key(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        client = await it.frontend.connect()
        await client.send(head(1_000_000) + bytes(900_000))
        await it.has_taken.wait()
        it.known.keys, it.known.generation = {}, it.known.generation + 1
        answer = await client.answer()
        assert (answer.status, answer.says_close) == (401, True)
        assert it.left() == []


async def test_a_body_that_stands_still_is_ended(tmp_path: Path) -> None:
    async with serving(tmp_path, body_timeout_s=0.2) as it:
        client = await it.frontend.connect()
        answer = await client.ask(head(1_000_000) + bytes(200_000))
        assert (answer.status, b"came too slowly" in answer.body) == (408, True)
        assert it.left() == []


async def test_bodies_at_the_same_time_share_the_tenants_room(tmp_path: Path) -> None:
    async with serving(tmp_path, bounds=Bounds(JobTotals(9, 3_000_000), JobTotals(9, 1 << 30))) as it:
        clients = [await it.frontend.connect() for _ in range(3)]
        body = body_of(1_400_000)
        answers = await asyncio.gather(*(client.ask(head(len(body)) + body) for client in clients))
        assert sorted(answer.status for answer in answers) == [202, 202, 429]
        assert len(it.left()) == 2


async def test_who_repeats_a_large_body_where_no_room_is_left_gets_his_first_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, bounds=Bounds(JobTotals(1, 1 << 30), JobTotals(9, 1 << 30))) as it:
        body, key = body_of(200_000), b'Idempotency-Key: "a"'
        first, again = [await (await it.frontend.connect()).ask(head(len(body), key) + body) for _ in range(2)]
        assert orjson.loads(first.body)["id"] == orjson.loads(again.body)["id"]
        other = await (await it.frontend.connect()).ask(head(len(body), key) + body[::-1])
        assert (other.status, len(it.left())) == (422, 1)


async def test_a_spool_that_is_full_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        receive = it.world.spool.receive

        async def full(job_id: str, name: str, pieces: AsyncIterator[bytes | bytearray]) -> Blob:
            async def until_full() -> AsyncIterator[bytes | bytearray]:
                yield await anext(pieces)
                raise StoreUnavailable("the spool: No space left on device", is_full=True)

            return await receive(job_id, name, until_full())

        it.world.spool.receive = full  # type: ignore[method-assign]
        answer = await (await it.frontend.connect()).ask(head(1_000_000) + body_of(1_000_000)[:1_000_000])
        assert (answer.status, b"No space left" in answer.body) == (503, True), answer
        assert it.left() == []


async def test_a_large_body_is_never_in_memory_whole(tmp_path: Path) -> None:
    size_bytes = 48 << 20
    async with serving(tmp_path, most_bytes=64 << 20) as it:
        client, piece = await it.frontend.connect(), bytes(1 << 20)
        tracemalloc.start()
        try:
            await client.send(head(size_bytes))
            for _ in range(size_bytes // len(piece)):
                await client.send(piece)
            accepted = await client.answer()
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert orjson.loads(accepted.body)["size_bytes"] == size_bytes
        assert peak_bytes < 16 << 20


@pytest.mark.parametrize("path", ["/v2/models/m/jobs", "/v1/files"])
async def test_a_body_that_is_pipelined_behind_a_chunked_request_is_received(tmp_path: Path, path: str) -> None:
    """The end of chunks whose sizes come in two parts is found by the parser alone, which by then has read the next head, too."""
    async with serving(tmp_path) as it:
        client, body = await it.frontend.connect(), body_of(100_000)
        first = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n" + KEY + b"\r\n"
        await client.send(first + b"%x" % len(INFER))
        while not it.frontend.server.connected:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        second = head(len(body), b"Expect: 100-continue").replace(b"/v2/models/m/jobs", path.encode())
        await client.send(b"\r\n" + INFER + b"\r\n0\r\n\r\n" + second)
        assert (await client.answer()).status == 200
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        answer = await client.ask(body)
        assert answer.status == (202 if path.startswith("/v2") else 404), "without files there is no such path; jobs there are"
