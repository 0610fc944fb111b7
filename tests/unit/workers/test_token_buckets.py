from __future__ import annotations

import asyncio

from control_plane.admission.domain.rate_limit import Drawn, RateLimit
from control_plane.workers.messages import DrawTokens
from control_plane.workers.token_buckets import ParentsBuckets, TokenBuckets
from tests.aio import run_in_virtual_time, settle

LIMIT = RateLimit(2.0, 4.0)


def test_a_worker_gets_what_its_parent_grants() -> None:
    async def main() -> None:
        parent = TokenBuckets(now_s=asyncio.get_running_loop().time)
        asked: list[DrawTokens] = []
        worker = ParentsBuckets(asked.append)
        drawing = [asyncio.get_running_loop().create_task(worker.draw(name, LIMIT, want=3, spent=0)) for name in ("t", "t", "u")]
        await settle()
        for each in reversed(asked):  # in whatever order
            worker.answered(parent.answer(each))
        assert [task.result().granted for task in drawing if await asyncio.wait([task])] == [1, 3, 3]

    run_in_virtual_time(main())


def test_an_answer_for_who_has_given_up_is_nobodys() -> None:
    async def main() -> None:
        asked: list[DrawTokens] = []
        worker, parent = ParentsBuckets(asked.append), TokenBuckets()
        drawing = asyncio.get_running_loop().create_task(worker.draw("t", LIMIT, want=1, spent=0))
        await settle()
        drawing.cancel()
        await asyncio.wait([drawing])
        worker.answered(parent.answer(asked[0]))
        assert drawing.cancelled()

    run_in_virtual_time(main())


def test_buckets_that_are_full_again_are_forgotten() -> None:
    now_s = 0.0
    buckets = TokenBuckets(now_s=lambda: now_s)
    for number in range(9_999):
        buckets.draw_now(f"t{number}", LIMIT, want=1, spent=0)
    now_s = 100.0
    buckets.draw_now("in use", LIMIT, want=4, spent=0)
    buckets.draw_now("one more", LIMIT, want=0, spent=0)
    assert len(buckets._states) < 10
    assert buckets.draw_now("in use", LIMIT, want=1, spent=0) == Drawn(0, 2.0)
