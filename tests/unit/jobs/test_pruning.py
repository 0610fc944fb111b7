"""Bodies of ended jobs stay for a while, and then go."""

from __future__ import annotations

import asyncio
from pathlib import Path

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.adapters.folder_spool import FolderSpool
from control_plane.jobs.pruning import BODY_KEPT_S, MOST_KEPT_BYTES, Pruner
from tests.fakes.jobs import job_id


def files(folder: Path) -> list[str]:
    """What is there, by the last digit of the job."""
    return sorted(f"{path.parent.name[-1]} {path.name}" for path in folder.glob("*/*/*"))


async def test_a_body_goes_once_its_time_has_come_and_the_result_stays(tmp_path: Path) -> None:
    spool, now_s = FolderSpool(tmp_path), 1000.0
    pruner = Pruner(spool, today_s=lambda: now_s)
    for number in (1, 2):
        await spool.write(job_id(number), "body", [b"body"])
        await spool.write(job_id(number), "result-1", [b"result"])
        pruner.put(job_id(number), tenant="team", keep=f"{job_id(number)}/result-1", size_bytes=4)
        now_s += 10.0

    now_s = 1000.0 + BODY_KEPT_S
    await pruner.prune()

    assert files(tmp_path) == ["1 result-1", "2 body", "2 result-1"]
    await spool.close()


async def test_of_a_tenant_whose_bodies_are_too_large_together_the_oldest_go_before_their_time(tmp_path: Path) -> None:
    spool = FolderSpool(tmp_path)
    pruner = Pruner(spool, today_s=lambda: 1000.0)
    for number, tenant in ((1, "large"), (2, "other"), (3, "large"), (4, "large")):
        await spool.write(job_id(number), "body", [b"body"])
        pruner.put(job_id(number), tenant=tenant, keep="", size_bytes=MOST_KEPT_BYTES // 2)

    await pruner.prune()

    assert files(tmp_path) == ["2 body", "3 body", "4 body"]
    await spool.close()


async def test_after_the_clock_was_set_back_bodies_go_as_before(tmp_path: Path) -> None:
    spool, now_s = FolderSpool(tmp_path), 1e6
    pruner = Pruner(spool, today_s=lambda: now_s)
    for number in (1, 2):
        await spool.write(job_id(number), "body", [b"body"])
        pruner.put(job_id(number), tenant="team", keep="", size_bytes=4)
        now_s = 1000.0

    await pruner.prune()
    assert files(tmp_path) == ["2 body"]
    now_s += BODY_KEPT_S
    await pruner.prune()
    assert files(tmp_path) == []
    await spool.close()


async def test_what_cannot_be_removed_now_is_removed_later(tmp_path: Path) -> None:
    class Away(FolderSpool):
        tries = 0

        async def prune(self, job_id: str, *, keep: str = "") -> None:
            self.tries += 1
            if self.tries == 1:
                raise StoreUnavailable("the disk is away")
            await super().prune(job_id, keep=keep)

    spool, now_s = Away(tmp_path), 0.0
    pruner = Pruner(spool, today_s=lambda: now_s)
    await spool.write(job_id(1), "body", [b"body"])
    pruner.put(job_id(1), tenant="team", keep="", size_bytes=4)
    now_s = BODY_KEPT_S
    running = asyncio.get_running_loop().create_task(pruner.run())
    while spool.tries < 2 or files(tmp_path):
        await asyncio.sleep(0.01)
    running.cancel()
    await spool.close()
