"""Batches of one process beside each other: what one meets is no other's, and those that are created at once are counted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from control_plane.batches.batches import Batches
from control_plane.batches.domain.batch import Batch, StoredFile
from control_plane.batches.files import Files
from control_plane.core.errors import Conflict, LimitExceeded
from control_plane.jobs.domain.transitions import RetryPolicy
from control_plane.jobs.ports import JobBackend
from tests.fakes.jobs import ROOMY
from tests.unit.batches.world import CALLER, WRONG, BatchWorld, batch_world, batches_of, pieces_of
from tests.unit.jobs.world import Fate


class Broken:
    """A shelf that meets a defect over one batch."""

    def __init__(self, here: BatchWorld) -> None:
        self._shelf: Any = here.shelf
        self.broken_id = ""
        self.met = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shelf, name)

    async def read_chunk(self, batch: Batch, chunk: Any) -> Any:
        if batch.id == self.broken_id:
            self.met += 1
            raise ZeroDivisionError
        return await self._shelf.read_chunk(batch, chunk)


async def test_a_defect_over_one_batch_holds_up_no_other_and_it_goes_on_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with batch_world(tmp_path) as here:
        shelf = Broken(here)
        batches = batches_of(here.jobs, shelf, here.files())
        first = await here.create()
        shelf.broken_id = first.id
        here.jobs.clock_s += 1.0
        second = await here.create()
        await here.live_through(second, batches)
        assert (await batches.progress(first)).ended is None
        assert "ZeroDivisionError" in caplog.text
        met = shelf.met
        await batches.advance()
        assert shelf.met == met, "it rests for a while"
        shelf.broken_id = ""
        here.jobs.clock_s += 60.0
        await here.live_through(first, batches)


async def test_batches_that_are_created_at_once_are_counted(tmp_path: Path) -> None:
    async with batch_world(tmp_path) as here:
        batches = batches_of(here.jobs, here.shelf, here.files(), max_open=2)
        file_id = await here.upload()
        made = await asyncio.gather(*(batches.create(CALLER, file_id, None) for _ in range(6)), return_exceptions=True)
        assert [type(each) for each in made].count(Batch) == 2
        assert {type(each) for each in made} == {Batch, LimitExceeded}
        with pytest.raises(LimitExceeded, match="2 batches"):
            await batches.create(CALLER, file_id, None)


class Counted:
    """A shelf that counts how many of its files are read at a time."""

    def __init__(self, here: BatchWorld) -> None:
        self._shelf: Any = here.shelf
        self.reading = self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shelf, name)

    async def read_file(self, tenant: str, file_id: str) -> Counted:
        self._reader = await self._shelf.read_file(tenant, file_id)
        self.reading += 1
        self.most = max(self.most, self.reading)
        return self

    async def receive(self) -> bytes | None:
        await asyncio.sleep(0.001)
        piece: bytes | None = await self._reader.receive()
        return piece

    def close(self) -> None:
        self.reading -= 1
        self._reader.close()


async def test_a_tenants_input_files_are_validated_one_after_the_other(tmp_path: Path) -> None:
    """Each validation may hold megabytes, and a tenant may create a thousand batches at once."""
    async with batch_world(tmp_path) as here:
        shelf: Any = Counted(here)
        batches = batches_of(here.jobs, shelf, Files(shelf, max_bytes=1 << 20, today_s=here.jobs.now_s))
        file_id = await here.upload()
        await asyncio.gather(*(batches.create(CALLER, file_id, None) for _ in range(6)))
        assert (shelf.most, shelf.reading) == (1, 0)


async def test_who_has_as_many_bytes_of_files_as_may_be_makes_no_more_of_them_by_batches(tmp_path: Path) -> None:
    async with batch_world(tmp_path) as here:
        batches, file_id = here.batches(), await here.upload()
        await batches.create(CALLER, file_id, None)
        output = StoredFile(f"file-{1:032x}", CALLER.tenant, "out.jsonl", "batch_output", 0, here.jobs.now_s(), "m")
        await here.shelf.add_file(output, pieces_of(bytes(1 << 20)))
        with pytest.raises(LimitExceeded, match="2 files with"):
            await batches.create(CALLER, file_id, None)


async def test_runners_are_told_of_the_first_chunks_while_the_next_are_made_and_a_small_one_is_in_its_record(tmp_path: Path) -> None:
    async with batch_world(tmp_path, carries_bytes=1 << 20) as here:
        batch = await here.batches().create(CALLER, await here.upload(lines=6 * 32), None)
        fate = Fate()
        await here.batches(fate).advance()
        made = [each.partition(".")[2] for each in fate.made]
        assert [each for each in made if each in ("write", "add", "publish")] == [*(4 * ["add"]), "publish", "add", "add", "publish"]
        await here.live_through(batch)
        answers = await here.answers(batch)
        assert (len(answers["output"]), answers["error"]) == (6 * 32 - 1, [WRONG])
        assert await here.forget() == []


async def test_the_answers_of_a_batch_that_is_over_leave_the_spool_after_a_while_and_its_output_stays(tmp_path: Path) -> None:
    """They are as large as the output, of a batch up to a gigabyte, and their jobs are kept for a day."""
    async with batch_world(tmp_path) as here:
        batches = here.batches()
        batch = await here.create()
        await here.live_through(batch, batches)
        answers = await here.answers(batch)
        jobs, part = here.jobs.jobs(), await here.jobs.job(batch.job_id(0))
        assert await jobs.result(part)
        assert any(name.startswith("result-") for name in here.jobs.files()), "another process may be about to write the output, too"
        here.jobs.clock_s += 700.0
        await batches.advance()
        assert not any(name.startswith(("result-", "body")) for name in here.jobs.files())
        assert await here.answers(batch) == answers
        for read in (jobs.result, jobs.open_result):
            with pytest.raises(Conflict, match="is a part of a batch, whose output and error files have its answers"):
                await read(part)


class Cleaned:
    """A shelf that counts how often it was cleaned."""

    def __init__(self, here: BatchWorld) -> None:
        self._shelf: Any = here.shelf
        self.times = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shelf, name)

    async def remove_older(self, before_s: float, *, unfinished_before_s: float) -> None:
        self.times += 1


async def test_what_is_old_is_removed_also_after_the_clock_was_set_back(tmp_path: Path) -> None:
    async with batch_world(tmp_path) as here:
        shelf = Cleaned(here)
        batches = batches_of(here.jobs, shelf, here.files())
        for _ in range(2):
            await batches.advance()
        assert shelf.times == 1
        here.jobs.clock_s -= 1e6
        for _ in range(2):
            await batches.advance()
        assert shelf.times == 2


class SlowShelf:
    """A shelf without batches, a look at which takes three seconds."""

    looks = 0

    async def open_batches(self) -> list[Batch]:
        self.looks += 1
        await asyncio.sleep(3.0)
        return []

    async def remove_older(self, before_s: float, *, unfinished_before_s: float) -> None: ...


@pytest.mark.virtual_time
async def test_looks_that_take_long_are_rare() -> None:
    nothing: Any = None
    shelf: Any = SlowShelf()
    batches = Batches(
        JobBackend(nothing, nothing, nothing), files=nothing, shelf=shelf, bounds=ROOMY, policy=RetryPolicy(), keep_s=1.0, max_open=1
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(batches.run())
        await asyncio.sleep(60.0)
        running.cancel()
    assert 4 <= shelf.looks <= 7
