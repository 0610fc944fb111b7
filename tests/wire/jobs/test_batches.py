"""OpenAI's files and batches over the real store, spool and shelf, called by the official client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from control_plane.batches.adapters.folder_shelf import FolderShelf
from control_plane.batches.batches import Batches
from control_plane.batches.files import Files
from control_plane.core.errors import InvalidRequest, ModelNotFound, PermissionDenied
from control_plane.core.principal import Principal
from control_plane.frontends.batches.http import BatchesHttp
from control_plane.jobs.domain.job import Blob
from control_plane.jobs.ports import SpoolDamaged
from control_plane.objects.domain.tenant import Tenant
from tests.fakes.batch_lines import AnsweringLines
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.unit.batches.world import batches_of
from tests.unit.jobs.world import World, running, world
from tests.wire.gateway import gateway


@dataclass
class Here:
    world: World
    batches: Batches
    mine: openai.AsyncOpenAI
    others: openai.AsyncOpenAI
    not_for_m: openai.AsyncOpenAI
    """Client with a key of the tenant of `mine` whose scope is model `n`; the batches of `mine` are for `m`."""

    async def work(self, until: str, batch_id: str) -> Any:
        """Compute until the batch is in that state."""
        async with running(self.world.runner()):
            while True:
                await self.batches.advance()
                found = await self.mine.batches.retrieve(batch_id)
                if found.status == until:
                    return found


@asynccontextmanager
async def serving(folder: Path, *, max_bytes: int = 1 << 20, max_open: int = 100) -> AsyncIterator[Here]:
    keys = (api_key(1, "infer:m"), api_key(2, "infer:*", tenant="others"), api_key(3, "infer:n"))
    governed = governance(known_state(keys=keys, tenants=(Tenant("team"), Tenant("others"))), authentication=True)
    shelf = FolderShelf(folder / "spool" / "batches")
    async with world(folder) as here:
        here.compute = AnsweringLines()
        files = Files(shelf, max_bytes=max_bytes, today_s=here.now_s)
        batches = batches_of(here, shelf, files, max_open=max_open)
        async with gateway(governed=governed, batches=BatchesHttp(files, batches)) as it:
            url = f"http://127.0.0.1:{it.port}/v1"
            async with (
                openai.AsyncOpenAI(base_url=url, api_key=key_text(1), max_retries=0) as mine,
                openai.AsyncOpenAI(base_url=url, api_key=key_text(2), max_retries=0) as others,
                openai.AsyncOpenAI(base_url=url, api_key=key_text(3), max_retries=0) as not_for_m,
            ):
                yield Here(here, batches, mine, others, not_for_m)
    await shelf.close()


def line(custom_id: str, **changes: Any) -> str:
    body = {"model": "m", "input": "a text"}
    return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body} | changes).decode()


async def upload(client: openai.AsyncOpenAI, *lines: str) -> str:
    return (await client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")).id


async def create(client: openai.AsyncOpenAI, *lines: str) -> Any:
    file_id = await upload(client, *lines)
    return await client.batches.create(input_file_id=file_id, endpoint="/v1/embeddings", completion_window="24h", metadata={"of": "me"})


async def ids_in(client: openai.AsyncOpenAI, file_id: str | None) -> list[str]:
    assert file_id is not None
    return [orjson.loads(each)["custom_id"] for each in (await client.files.content(file_id)).text.splitlines()]


async def test_a_tenant_has_so_many_open_batches_and_others_theirs(tmp_path: Path) -> None:
    async with serving(tmp_path, max_open=2) as it:
        first, _ = [await create(it.mine, line(str(number))) for number in range(2)]
        with pytest.raises(openai.RateLimitError, match="2 batches of this tenant have not ended"):
            await create(it.mine, line("3"))
        await create(it.others, line("1"))

        await it.work("completed", first.id)
        await create(it.mine, line("3"))


async def test_the_call_for_a_batch_is_short(tmp_path: Path) -> None:
    """It names a file; of a megabyte of empty lists the parser would take 70 ms, in which nobody else is served."""
    async with serving(tmp_path) as it:
        with pytest.raises(openai.APIStatusError, match="exceeds its limit of 65536 bytes") as refused:
            await it.mine.batches.create(
                input_file_id="file-1", endpoint="/v1/embeddings", completion_window="24h", extra_body={"x": [[]] * 22_000}
            )
        assert refused.value.status_code == 413


@pytest.mark.parametrize(
    ("refusal", "error", "said"),
    [
        pytest.param(
            ModelNotFound("the model 'm' does not exist"), openai.BadRequestError, "line 1: the model 'm' does not exist", id="no"
        ),
        pytest.param(InvalidRequest("no text-embedding model"), openai.BadRequestError, "line 1: no text-embedding", id="another-kind"),
        pytest.param(PermissionDenied("not yours"), openai.PermissionDeniedError, "not yours", id="not-the-callers"),
    ],
)
async def test_a_batch_that_no_model_can_compute_is_refused_when_it_is_created(
    tmp_path: Path, refusal: Exception, error: type[Exception], said: str
) -> None:
    """Accepted, each of its lines would fail later."""
    asked: list[tuple[str, str]] = []

    async def require(principal: Principal, name: str) -> None:
        asked.append((principal.tenant, name))
        raise refusal

    async with serving(tmp_path) as it:
        it.batches.require_model = require
        with pytest.raises(error, match=said):
            await create(it.mine, line("a"))
        assert asked == [("team", "m")]
        assert (await it.mine.batches.list()).data == []


async def test_a_file_is_kept_listed_read_and_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        content = b'a\r\n--b"\r\n\x00\xff\n'
        file = await it.mine.files.create(file=("in.jsonl", content), purpose="batch")

        assert (file.bytes, file.filename, file.purpose) == (len(content), "in.jsonl", "batch")
        assert [each.id async for each in it.mine.files.list()] == [file.id]
        assert (await it.mine.files.content(file.id)).content == content
        for kept in (it.mine.files.with_raw_response.content(file.id), it.mine.files.with_raw_response.retrieve(file.id)):
            assert (await kept).headers["cache-control"] == "no-store", "no cache on the way keeps it"
        assert [each.id async for each in it.others.files.list()] == []
        for call in (it.others.files.retrieve, it.others.files.content, it.others.files.delete):
            with pytest.raises(openai.NotFoundError):
                await call(file.id)
        assert (await it.mine.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await it.mine.files.retrieve(file.id)


async def test_a_key_sees_no_batch_for_a_model_that_it_may_not_call_nor_what_it_has_written(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        batch = await create(it.mine, line("a"))
        done = await it.work("completed", batch.id)
        own = await create(it.not_for_m, line("b", body={"model": "n", "input": "a"}))

        assert [each.id async for each in it.not_for_m.batches.list(limit=1)] == [own.id]
        for call in (it.not_for_m.batches.retrieve, it.not_for_m.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                await call(batch.id)
        assert done.output_file_id not in [each.id async for each in it.not_for_m.files.list()]
        for call in (it.not_for_m.files.retrieve, it.not_for_m.files.content, it.not_for_m.files.delete):
            with pytest.raises(openai.NotFoundError):
                await call(done.output_file_id)
        assert await ids_in(it.mine, done.output_file_id) == ["a"]


async def test_files_are_bounded(tmp_path: Path) -> None:
    async with serving(tmp_path, max_bytes=100) as it:
        await upload(it.mine, "x" * 60)
        with pytest.raises(openai.RateLimitError, match="60 bytes") as refused:
            await upload(it.mine, "x" * 60)
        assert int(refused.value.response.headers["retry-after"]) >= 600, "not before he deletes some"
        await upload(it.others, "x" * 60)


async def test_answers_that_the_disk_has_lost_are_said_to_be_and_the_batch_ends(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        batch = await create(it.mine, *(line(f"line-{number}") for number in range(3)))
        read = it.world.spool.read

        async def damaged(blob: Blob) -> bytes:
            if "/result-" in blob.name:
                raise SpoolDamaged("another digest")
            return await read(blob)

        it.world.spool.read = damaged  # type: ignore[method-assign]
        done = await it.work("completed", batch.id)
        lines = [orjson.loads(each) for each in (await it.mine.files.content(done.output_file_id)).text.splitlines()]
        assert [each["custom_id"] for each in lines] == ["line-0", "line-1", "line-2"]
        assert all("damaged on disk" in each["error"]["message"] for each in lines)


async def test_each_line_is_answered_and_charged_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        names = [f"line-{number}" for number in range(70)]
        batch = await create(it.mine, *(line(name) for name in names), line("wrong-1"))
        assert (batch.status, batch.request_counts.total, batch.metadata) == ("in_progress", 71, {"of": "me"})
        await it.mine.files.delete(batch.input_file_id)  # the batch has its own

        done = await it.work("completed", batch.id)

        assert (done.request_counts.completed, done.request_counts.failed) == (70, 1)
        assert await ids_in(it.mine, done.output_file_id) == names
        assert await ids_in(it.mine, done.error_file_id) == ["wrong-1"]
        it.world.clock_s += 10.0  # what its runner has not charged before it ended the sweeper does
        await it.world.sweeper().sweep()
        assert it.world.usage.requests() == 70
        assert len(it.world.compute.begun) == 3
        await it.batches.advance()
        assert [each.id async for each in it.mine.batches.list()] == [batch.id]
        with pytest.raises(openai.NotFoundError):
            await it.others.batches.retrieve(batch.id)


async def test_a_batch_goes_on_by_what_its_own_process_has_ended_without_a_look_at_what_is_open(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        batch = await create(it.mine, *(line(f"line-{number}") for number in range(70)))
        await it.batches.advance()
        async with running(it.world.runner()):
            job_ids = [each.id for each in await it.world.store.jobs_of(None, state=None, before="", limit=10)]
            ended = [await it.world.until(lambda job: not job.is_open, job_id) for job_id in job_ids]

        await it.batches.advance(is_full=False)
        assert (await it.mine.batches.retrieve(batch.id)).status == "in_progress"
        for each in ended:
            it.batches.job_ended(each)
        await it.batches.advance(is_full=False)

        assert (await it.mine.batches.retrieve(batch.id)).status == "completed"


async def test_finished_lines_of_a_cancelled_batch_stay(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        batch = await create(it.mine, *(line(f"line-{number}") for number in range(64)))
        await it.batches.advance()
        async with running(it.world.runner(slots=1)):
            while not (await it.mine.batches.retrieve(batch.id)).request_counts.completed:
                pass
            assert (await it.mine.batches.cancel(batch.id)).status == "cancelling"
        done = await it.work("cancelled", batch.id) if not await _is_over(it, batch.id) else await it.mine.batches.retrieve(batch.id)

        output = await ids_in(it.mine, done.output_file_id)
        errors = await ids_in(it.mine, done.error_file_id) if done.error_file_id else []
        assert len(output) == done.request_counts.completed >= 32
        assert sorted(output + errors) == sorted(f"line-{number}" for number in range(64))


async def _is_over(it: Here, batch_id: str) -> bool:
    await it.batches.advance()
    return (await it.mine.batches.retrieve(batch_id)).status in ("cancelled", "completed")


async def test_what_the_window_was_too_short_for_is_expired(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        batch = await create(it.mine, line("a"), line("b"))
        it.world.clock_s += 86_401
        await it.batches.advance()
        done = await it.mine.batches.retrieve(batch.id)

        assert (done.status, done.output_file_id) == ("expired", None)
        assert await ids_in(it.mine, done.error_file_id) == ["a", "b"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        pytest.param(("{",), "line 1: is not valid JSON", id="no-json"),
        pytest.param((line("a"), line("a")), "line 2: custom_id 'a' is that of an earlier line", id="twice"),
        pytest.param((line("a"), line("b", url="/v1/x")), 'line 2: url must be "/v1/embeddings"', id="url"),
        pytest.param((line("a"), line("b", body={"model": "n", "input": "a"})), "a batch is for one model", id="model"),
        pytest.param((line("a", body={"model": "m", "input": ""}),), "line 1: input cannot be an empty string", id="input"),
    ],
)
async def test_a_wrong_line_is_named(tmp_path: Path, lines: tuple[str, ...], said: str) -> None:
    async with serving(tmp_path) as it:
        with pytest.raises(openai.BadRequestError) as refused:
            await create(it.mine, *lines)
        assert said in str(refused.value)
