"""One call's texts in batches: of similar lengths, a few at a time, and none left in flight when one
fails."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from control_plane.core.errors import DeadlineExceeded, UpstreamFailed
from control_plane.core.infer_call import InferCall
from control_plane.embeddings.copies import OneServer
from control_plane.embeddings.domain.text_model_config import read_text_model
from control_plane.embeddings.text_batches import TextBatches
from control_plane.protocols.http1 import make_answer
from tests.aio import run, settle
from tests.fakes import FakeUpstream
from tests.fakes.triton.text_model import FakeTextModel, embedding_of


class Bench:
    def __init__(self, **model: Any) -> None:
        self.triton, self.upstream = FakeTextModel(**model), FakeUpstream()
        self.upstream.http.answer = self.triton
        self.timeouts_s = [9.0]

    def batches(self, *, version: str = "", are_tokens: bool = False) -> TextBatches:
        config = self.triton.config_bytes()
        model = read_text_model(config)
        assert model is not None
        return TextBatches(OneServer(self.upstream), InferCall("m", version, "", ()), model, are_tokens, self.left_s)

    def left_s(self) -> float:
        if not self.timeouts_s[0]:
            raise DeadlineExceeded("Deadline Exceeded")
        return self.timeouts_s[0]


def texts(lengths: Sequence[int]) -> list[bytes]:
    return [b"%d" % (number % 10) + b"x" * length for number, length in enumerate(lengths)]


def with_bench(test: Callable[[Bench], Coroutine[Any, Any, None]], **model: Any) -> None:
    run(test(Bench(**model)))


@pytest.mark.parametrize("count", [1, 4, 5, 17])
def test_each_input_has_its_embedding_and_batches_are_of_like_lengths(count: int) -> None:
    async def test(bench: Bench) -> None:
        given = texts([number * 7 % 19 for number in range(count)])

        found = await bench.batches().compute(given)

        assert [array("f", row.values).tolist() for row in found] == [embedding_of(text) for text in given]
        assert [row.tokens for row in found] == [len(text) for text in given]
        assert sorted(map(len, bench.triton.batches)) == sorted([4] * (count // 4) + [count % 4] * (count % 4 > 0))
        assert [len(text) for text in bench.triton.computed] == sorted(map(len, given))

    with_bench(test)


def test_a_few_are_under_way_at_a_time() -> None:
    async def test(bench: Bench) -> None:
        bench.upstream.http.calls.hold()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.batches().compute(texts(range(40))))
            await settle()
            assert bench.upstream.http.calls.in_progress == 4
            bench.upstream.http.calls.may_answer.set()

    with_bench(test)


def test_one_that_fails_ends_the_others() -> None:
    async def test(bench: Bench) -> None:
        bench.triton.failure = lambda request: make_answer(500, b'{"error":"out of memory"}') if b"xxxxxxxxxx" in request.body else None
        with pytest.raises(UpstreamFailed, match="out of memory"):
            await bench.batches().compute(texts(range(40)))
        assert bench.upstream.http.calls.in_progress == 0
        assert len(bench.upstream.http.requests) < 10

    with_bench(test)


def test_each_batch_has_what_is_left_of_the_time() -> None:
    async def test(bench: Bench) -> None:
        bench.timeouts_s[0] = 2.5
        await bench.batches().compute([b"a"])
        assert bench.upstream.http.calls.timeouts_s == [2.5]
        bench.timeouts_s[0] = 0.0
        with pytest.raises(DeadlineExceeded):
            await bench.batches().compute(texts(range(9)))

    with_bench(test)


def test_a_version_is_asked_by_its_path() -> None:
    async def test(bench: Bench) -> None:
        await bench.batches(version="3").compute([b"a"])
        assert bench.triton.targets == [b"/v2/models/m/versions/3/infer"]

    with_bench(test)


def test_tokens_that_nobody_counts_are_estimated_or_are_the_inputs_own() -> None:
    async def test(bench: Bench) -> None:
        assert [row.tokens for row in await bench.batches().compute([b"a" * 45, b"a"])] == [12, 2]
        ids = array("q", [65, 66, 67]).tobytes()
        assert [row.tokens for row in await bench.batches(are_tokens=True).compute([ids])] == [3]

    with_bench(test, counts_tokens=False, takes_tokens=True)
