"""Answers of open batches have their tenant's room, too: who has none left waits until he deletes something, and loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from control_plane.batches.answer_room import AnswerRoom, OpenBatch
from control_plane.batches.batches import Batches
from control_plane.batches.domain.batch import Batch, Chunk, Chunks
from control_plane.batches.domain.output_lines import ChunkEnd
from control_plane.batches.files import Files
from control_plane.core.errors import LimitExceeded
from control_plane.frontends.batches.views import batch_view
from control_plane.jobs.domain.job import JobState
from tests.unit.batches.world import OK, BatchWorld, batch_world, batches_of, content_of_input, pieces_of
from tests.unit.jobs.world import CALLER


def of_bytes(here: BatchWorld, max_bytes: int) -> tuple[Batches, Files]:
    files = Files(here.shelf, max_bytes=max_bytes, today_s=here.jobs.now_s)
    return batches_of(here.jobs, here.shelf, files), files


async def created(here: BatchWorld, batches: Batches, input_id: str, count: int) -> list[Batch]:
    """Make so many batches, the oldest first."""
    made = []
    for _ in range(count):
        made.append(await batches.create(CALLER, input_id, None))
        here.jobs.clock_s += 0.01
    return made


async def look_after(here: BatchWorld, batches: Batches) -> None:
    for _ in range(6):
        await batches.advance()
        await here.compute()
        here.jobs.clock_s += 10.0


async def test_the_batches_of_who_has_no_room_left_wait_until_he_deletes_something_and_then_end(tmp_path: Path) -> None:
    async with batch_world(tmp_path) as here:
        input_id = await here.upload()
        input_bytes = len(content_of_input())
        batches, files = of_bytes(here, input_bytes + 1)
        first, second = await created(here, batches, input_id, 2)
        await look_after(here, batches)
        ended, waiting = await batches.progress(first), await batches.progress(second)
        assert ended.ended is not None, "the oldest one is not held up by answers that are on their way"
        assert (waiting.ended, waiting.completed, waiting.waits) == (None, 0, True)
        shown = batch_view(second, waiting)
        assert (shown["status"], shown["errors"]) == ("in_progress", None)
        assert "delete files" in shown["waits"]
        assert "waits" not in batch_view(first, ended)
        for refused in (batches.create(CALLER, input_id, None), files.add(CALLER, filename="b", content=pieces_of(b"b"))):
            with pytest.raises(LimitExceeded, match="delete some first"):
                await refused
        for file_id in (first.output_file_id, first.error_file_id):
            await files.delete(CALLER, file_id)
        await look_after(here, batches)
        assert (await batches.progress(second)).ended is not None
        assert (await here.answers(second))["output"] == OK


async def test_answers_that_are_no_files_yet_count_for_what_is_submitted(tmp_path: Path) -> None:
    async with batch_world(tmp_path) as here:
        input_id = await here.upload(lines=200)
        batches, files = of_bytes(here, 2 * len(content_of_input(200)))
        await batches.create(CALLER, input_id, None)
        assert await files.add(CALLER, filename="b", content=pieces_of(b"b"))
        await batches.advance()
        with pytest.raises(LimitExceeded, match="inputs and answers of open batches among them"):
            await files.add(CALLER, filename="b", content=pieces_of(b"b"))


async def test_one_that_waits_can_be_cancelled_and_ends_with_its_window(tmp_path: Path) -> None:
    async with batch_world(tmp_path) as here:
        input_id = await here.upload()
        batches, _ = of_bytes(here, len(content_of_input()) + 1)
        _, second, third = await created(here, batches, input_id, 3)
        await look_after(here, batches)
        await batches.cancel(CALLER, second.id)
        await look_after(here, batches)
        end = (await batches.progress(second)).ended
        assert end is not None
        assert end.state == "cancelled"
        here.jobs.clock_s = third.expires_s + 10.0
        await look_after(here, batches)
        end = (await batches.progress(third)).ended
        assert end is not None
        assert end.state == "expired"


class Filled:
    """Files of a tenant, of which so many bytes are there."""

    max_bytes = 1_000

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes, self.looks = size_bytes, 0

    async def filled_bytes(self, tenant: str) -> int:
        self.looks += 1
        return self.size_bytes


def an_open(name: str, *sizes: int, tenant: str = "team") -> OpenBatch:
    chunks = Chunks([Chunk(1, 0, 1)] * 8)
    batch = Batch(name, tenant, "", (), "file", "m", chunks, None, 0.0, 1.0)
    return OpenBatch(batch, {number: ChunkEnd(JobState.SUCCEEDED, 1, size_bytes=size) for number, size in enumerate(sizes)})


async def taken(files: Any, *known: OpenBatch) -> list[int]:
    """How many of eight chunks each has room for, one batch after the other."""
    room, counts = AnswerRoom(files, lambda: 0.0), []
    room.begin({each.batch.id: each for each in known})
    for each in known:
        counts.append(0)
        while counts[-1] < 8 and await room.take(each):
            each.open.add(100 + counts[-1])
            counts[-1] += 1
    return counts


async def test_chunks_that_are_open_are_reckoned_as_large_as_those_that_have_ended() -> None:
    files = Filled(100)
    assert await taken(files, an_open("a", 100, 100), an_open("b", 100)) == [8, 0]
    assert files.looks == 1
    assert await taken(Filled(100), an_open("a"), an_open("b")) == [8, 0], "of 8 KiB for a line, where nothing is known"
    assert await taken(Filled(100), an_open("a", 10), an_open("b", 40)) == [8, 8]
    assert await taken(Filled(1_000), an_open("a"), an_open("b")) == [0, 0]


async def test_tenants_have_room_of_their_own() -> None:
    assert await taken(Filled(100), an_open("a", 900), an_open("b", 900, tenant="others")) == [8, 8]
