"""Whoever dies before or after whichever step of a batch: each line is answered once and charged once, and nothing is left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from control_plane.batches.domain.batch import Batch, BatchState
from control_plane.core.errors import StoreUnavailable
from tests.aio import run
from tests.unit.batches.world import CHUNKS, OK, WRONG, BatchWorld, batch_world
from tests.unit.jobs.world import CALLER, Fate, Killed

HOOK = "https://receiver.example/hook"
Life = Callable[[BatchWorld, Fate], Awaitable[None]]
"""What a process does that may die."""


async def creating(here: BatchWorld, fate: Fate) -> None:
    await here.batches(fate).create(CALLER, await here.upload(), None)


async def making_chunks(here: BatchWorld, fate: Fate) -> None:
    await here.create()
    await here.batches(fate).advance()


async def settling(here: BatchWorld, fate: Fate) -> None:
    """The look that finds every chunk of a batch with a webhook ended, and writes the output and the end."""
    await here.create(webhook=HOOK)
    await here.batches().advance()
    await here.compute()
    await here.batches(fate).advance()


async def settling_never_begun(here: BatchWorld, fate: Fate) -> None:
    """The looks that end a batch with a webhook that was cancelled before it had a job, whose record would have the webhook."""
    batch = await here.create(webhook=HOOK)
    await here.batches().cancel(CALLER, batch.id)
    here.jobs.clock_s += 10.0
    batches = here.batches(fate)
    await batches.advance()
    await batches.advance()


async def cancelling(here: BatchWorld, fate: Fate) -> None:
    batch = await here.create()
    await here.batches().advance()
    await here.batches(fate).cancel(CALLER, batch.id)


async def settling_cancelled(here: BatchWorld, fate: Fate) -> None:
    """The look that cancels the jobs of a cancelled batch, and then the one that ends it."""
    batch = await here.create()
    await here.batches().advance()
    await here.batches().cancel(CALLER, batch.id)
    batches = here.batches(fate)
    await batches.advance()
    await batches.advance()


STEPS: dict[Life, tuple[str, ...]] = {
    creating: ("open_count", "file", "filled", "file", "read_file", "add_batch"),
    making_chunks: (
        "open_batches", "cancelled_s", "get", "filled", "cancelled_s", "read_chunk", "write", "add",
        *((CHUNKS - 1) * ("get", "cancelled_s", "read_chunk", "write", "add")), "publish", "remove_older",
    ),
    settling: (
        "open_batches", "cancelled_s", *(2 * CHUNKS * ("get",)), *(2 * ("add_file", *(CHUNKS * ("get", "read")))), "get", "replace", "end",
        "remove_older",
    ),
    settling_never_begun: (
        "open_batches", "cancelled_s", *(2 * CHUNKS * ("get",)), "add_file", *(CHUNKS * ("get", "read_chunk")),
        *(CHUNKS * ("get",)), "read_chunk", "write", "add", "get", "replace", "prune", "remove_older",
        "open_batches", "cancelled_s", *(CHUNKS * ("get",)), "add_file", *(CHUNKS * ("get", "read_chunk")),
        *(CHUNKS * ("get",)), "replace", "end",
    ),
    cancelling: ("batch", "ended", "cancel"),
    settling_cancelled: (
        "open_batches", "cancelled_s", *(CHUNKS * ("get", "replace", "prune")), "remove_older",
        "open_batches", "cancelled_s", *(2 * CHUNKS * ("get",)), "add_file", *(CHUNKS * ("get", "read_chunk")), "end",
    ),
}  # fmt: skip


@pytest.mark.parametrize("life", STEPS, ids=lambda life: life.__name__)
def test_a_process_takes_these_steps(tmp_path: Path, life: Life) -> None:
    """The matrix below kills before and behind each that changes something; a step that is added here is killed at, too."""

    async def main() -> list[str]:
        async with batch_world(tmp_path) as here:
            fate = Fate()
            await life(here, fate)
            return fate.made

    assert tuple(each.partition(".")[2] for each in run(main())) == STEPS[life]


CHANGES_NOTHING = {"batch", "cancelled_s", "ended", "file", "files", "get", "open_batches", "open_count"}
"""Steps behind which a process that dies leaves what it would have left before them. What `read` gives is on its way into a file."""


def points() -> list[Any]:
    """Before the first step, and behind each that may change something: before the next step, or after the last."""
    return [
        pytest.param(life, min(at, len(names)), at > len(names), id=f"{life.__name__}-{at}-{name}")
        for life, names in STEPS.items()
        for at, (before, name) in enumerate(zip(("", *names), (*names, "end"), strict=True), 1)
        if before not in CHANGES_NOTHING
    ]


@pytest.mark.parametrize(("life", "at", "is_after"), points())
async def test_a_process_that_dies_at_any_step_costs_nothing(tmp_path: Path, life: Life, at: int, is_after: bool) -> None:
    async with batch_world(tmp_path) as here:
        fate = Fate(at, is_after)
        with pytest.raises(Killed):
            await life(here, fate)
        assert fate.is_dead

        known = await here.batches().batches_of(CALLER, after="", limit=10)
        if life is creating:
            assert len(known) == (fate.made[-1] == "FolderShelf.add_batch" and is_after), "accepted whole, or not at all"
            known.append(await here.create())
        for batch in known:
            await settled_once(here, batch, may_be_cancelled=life in (cancelling, settling_cancelled, settling_never_begun))
        assert here.jobs.usage.requests() == sum([len((await here.answers(batch))["output"]) for batch in known]), "each line charged once"
        assert await here.forget() == []


async def settled_once(here: BatchWorld, batch: Batch, *, may_be_cancelled: bool) -> None:
    """Each line is in one of the two files, once, and the batch says so."""
    await here.live_through(batch)
    end = (await here.batches().progress(batch)).ended
    assert end is not None
    found = await here.answers(batch)
    told = [(each.url, each.event, each.about) for each in await here.webhooks()]
    assert told == ([(HOOK, f"batch.{end.state}", batch.id)] if batch.webhook else []), "told once, and of this end"
    assert sorted(found["output"] + found["error"]) == sorted([*OK, WRONG])
    if may_be_cancelled and end.state is BatchState.CANCELLED:
        assert end.completed == len(found["output"])
        return
    assert (end.state, end.completed, end.failed) == (BatchState.COMPLETED, len(OK), 1)
    assert found == {"output": OK, "error": [WRONG]}


async def test_two_processes_that_look_after_a_batch_at_the_same_time_settle_it_once(tmp_path: Path) -> None:
    async with batch_world(tmp_path) as here:
        batch = await here.create()
        one, other = here.batches(), here.batches()
        for service in (one, other):
            await service.advance()
        await here.compute()
        assert (await one.progress(batch)).state is BatchState.IN_PROGRESS
        await one.advance()
        written = await here.content(batch.output_file_id)
        await other.advance()

        await settled_once(here, batch, may_be_cancelled=False)
        assert await here.content(batch.output_file_id) == written
        assert here.jobs.usage.requests() == len(OK)


async def test_a_chunk_whose_end_a_store_has_forgotten_that_was_set_back_is_computed_again(tmp_path: Path) -> None:
    """This process has seen it end, and goes by what the store says when it writes the output."""
    async with batch_world(tmp_path) as here:
        batch, service = await here.create(), here.batches()
        await service.advance()
        await here.jobs.store.remove(await here.jobs.job(batch.job_id(2)))
        await here.compute()
        await service.advance()  # sees the ends of two, and makes the third anew
        await here.jobs.store.remove(await here.jobs.job(batch.job_id(1)))
        await here.compute()

        await here.live_through(batch, service)

        assert await here.answers(batch) == {"output": OK, "error": [WRONG]}


async def test_a_batch_that_cannot_go_on_holds_up_no_other(tmp_path: Path) -> None:
    async with batch_world(tmp_path) as here:
        broken = await here.create()
        here.input_of(broken).unlink()
        here.jobs.clock_s += 1.0  # it comes first
        fine = await here.create()

        await settled_once(here, fine, may_be_cancelled=False)

        with pytest.raises(StoreUnavailable, match="No such file"):
            await here.batches().advance()
        assert (await here.batches().progress(broken)).ended is None
