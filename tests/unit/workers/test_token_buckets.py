from __future__ import annotations

import asyncio

import pytest

from control_plane.admission.domain.rate_limit import Draw, RateLimit
from control_plane.workers.messages.from_workers import DrawTokens
from control_plane.workers.token_buckets import RemoteTokenBuckets, TokenBuckets
from tests.aio import settle

LIMIT = RateLimit(2.0, 4.0)


@pytest.mark.virtual_time
async def test_a_worker_gets_what_its_parent_grants() -> None:
    parent = TokenBuckets(now_s=asyncio.get_running_loop().time)
    asked: list[DrawTokens] = []
    worker = RemoteTokenBuckets(asked.append)
    drawing = [asyncio.get_running_loop().create_task(worker.draw(name, LIMIT, want=3, spent=0)) for name in ("t", "t", "u")]
    await settle()
    for each in reversed(asked):  # in whatever order
        worker.answered(parent.answer(each))
    assert [task.result().granted for task in drawing if await asyncio.wait([task])] == [1, 3, 3]


@pytest.mark.virtual_time
async def test_an_answer_for_who_has_given_up_is_nobodys() -> None:
    asked: list[DrawTokens] = []
    worker, parent = RemoteTokenBuckets(asked.append), TokenBuckets()
    drawing = asyncio.get_running_loop().create_task(worker.draw("t", LIMIT, want=1, spent=0))
    await settle()
    drawing.cancel()
    await asyncio.wait([drawing])
    worker.answered(parent.answer(asked[0]))
    assert drawing.cancelled()


def test_buckets_that_are_full_again_are_forgotten() -> None:
    now_s = 0.0
    buckets = TokenBuckets(now_s=lambda: now_s)
    for number in range(9_999):
        buckets.draw_now(f"t{number}", LIMIT, want=1, spent=0)
    now_s = 100.0
    buckets.draw_now("in use", LIMIT, want=4, spent=0)
    buckets.draw_now("one more", LIMIT, want=0, spent=0)
    assert len(buckets._states) < 10
    assert buckets.draw_now("in use", LIMIT, want=1, spent=0) == Draw(0, 2.0)
