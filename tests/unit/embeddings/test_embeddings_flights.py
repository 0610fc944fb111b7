"""Coalescing of equal embeddings calls, and level two of the cache."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import DeadlineExceeded
from control_plane.core.infer_call import Outcome
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from tests.aio import settle
from tests.fakes.triton.text_model import embedding_of
from tests.unit.embeddings.embeddings_bench import HIT, JOINED, MISS, Bench, Shared, said, vectors, with_bench


def test_a_thousand_calls_for_the_same_compute_it_once() -> None:
    async def test(bench: Bench) -> None:
        await bench.embed(b"warm")
        bench.upstream.http.calls.hold()
        tasks = [await bench.start(b"a", b"b") for _ in range(10)]
        tasks += [asyncio.get_running_loop().create_task(bench.embed(b"a", b"b")) for _ in range(990)]
        await settle()
        bench.upstream.http.calls.may_answer.set()

        found = await asyncio.gather(*tasks)

        assert bench.triton.batches == [[b"warm"], [b"a", b"b"]]
        assert [said(each) for each in found] == [(MISS, 0)] + [(JOINED, 0)] * 999
        assert all(vectors(each) == [embedding_of(b"a"), embedding_of(b"b")] for each in found)

    with_bench(test)


def test_it_is_computed_for_the_others_when_its_first_caller_leaves_and_not_when_all_do() -> None:
    async def test(bench: Bench) -> None:
        await bench.embed(b"warm")
        bench.upstream.http.calls.hold()
        first, second = [await bench.start(b"a") for _ in range(2)]
        first.cancel()
        await settle()
        assert not bench.is_idle
        bench.upstream.http.calls.may_answer.set()
        assert said(await second) == (JOINED, 0)

        bench.upstream.http.calls.hold()
        both = [await bench.start(b"b") for _ in range(2)]
        for each in both:
            each.cancel()
        await settle()
        assert bench.upstream.http.calls.cancelled.is_set()
        assert bench.triton.batches == [[b"warm"], [b"a"]]
        assert bench.recorder.outcomes.count(Outcome.ABANDONED) == 3

    with_bench(test)


def test_what_its_first_callers_deadline_does_is_not_done_to_the_others() -> None:
    async def test(bench: Bench) -> None:
        await bench.embed(b"warm")
        answered = 0

        def fail_first(request: HttpRequest) -> HttpAnswer | None:
            nonlocal answered
            answered += 1
            if answered == 1:
                raise DeadlineExceeded("Deadline Exceeded")
            return None

        bench.triton.failure = fail_first
        bench.upstream.http.calls.hold()
        first, second, third = [await bench.start(b"a", timeout_s=timeout_s) for timeout_s in (1.0, 9.0, 9.0)]
        bench.upstream.http.calls.may_answer.set()

        with pytest.raises(DeadlineExceeded):
            await first
        assert [said(await each) for each in (second, third)] == [(MISS, 0), (JOINED, 0)]
        assert bench.triton.batches == [[b"warm"], [b"a"]]

    with_bench(test)


def test_what_a_model_says_after_its_first_callers_deadline_is_not_said_to_the_others() -> None:
    async def test(bench: Bench) -> None:
        await bench.embed(b"warm")
        expired = [make_answer(503, b'{"error":"Request timeout expired"}')]
        bench.triton.failure = lambda request: expired.pop() if expired else None
        bench.upstream.http.calls.hold()
        first, second = [await bench.start(b"a", timeout_s=timeout_s) for timeout_s in (1.0, 9.0)]
        await asyncio.sleep(1.0)
        bench.upstream.http.calls.may_answer.set()

        with pytest.raises(DeadlineExceeded):
            await first
        assert said(await second) == (MISS, 0)

    with_bench(test)


def test_who_joins_waits_no_longer_than_its_own_deadline() -> None:
    async def test(bench: Bench) -> None:
        await bench.embed(b"warm")
        bench.upstream.http.calls.hold()
        first, second = await bench.start(b"a"), await bench.start(b"a", timeout_s=2.0)

        with pytest.raises(DeadlineExceeded):
            await second
        bench.upstream.http.calls.may_answer.set()
        assert said(await first) == (MISS, 0)

    with_bench(test)


def test_level_two_is_asked_once_for_all_that_is_missing_and_once_for_all_who_wait() -> None:
    shared = Shared()

    async def test(bench: Bench) -> None:
        await bench.embed(b"a", b"b")
        assert len(shared.values) == 2

        async with asyncio.TaskGroup() as tasks:
            other = Bench(tasks, shared=shared)
            both = await asyncio.gather(other.embed(b"b", b"a"), other.embed(b"b", b"a"))
            assert [said(each) for each in both] == [(HIT, 2), (JOINED, 2)]
            assert said(await other.embed(b"a", b"c")) == (MISS, 1)
            assert other.triton.batches == [[b"c"]]
        assert shared.asked == [2, 2, 1]

    with_bench(test, shared=shared)


def test_what_is_damaged_in_level_two_is_computed() -> None:
    shared = Shared()

    async def test(bench: Bench) -> None:
        await bench.embed(b"a")
        shared.values = dict.fromkeys(shared.values, b"garbage")
        async with asyncio.TaskGroup() as tasks:
            other = Bench(tasks, shared=shared)
            for expected in ((MISS, 0), (HIT, 1)):
                found = await other.embed(b"a")
                assert (vectors(found), said(found)) == ([embedding_of(b"a")], expected)

    with_bench(test, shared=shared)


def test_level_two_is_told_what_computing_took_before() -> None:
    shared = Shared()

    async def test(bench: Bench) -> None:
        await bench.embed(b"a", b"b")
        await bench.embed(b"c")
        first_s, second_s = shared.computing_s
        assert second_s < first_s, "nobody knew; and computing takes no time here"

    with_bench(test, shared=shared)
