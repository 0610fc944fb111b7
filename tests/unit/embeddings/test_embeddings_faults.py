"""Embeddings calls whose server fails: each of their batches is sent again as any repeatable request is."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import QueryOfDeath, UpstreamFailed, UpstreamUnavailable
from control_plane.core.infer_call import Outcome
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from tests.fakes import FakeUpstream
from tests.fakes.triton.text_model import embedding_of
from tests.unit.embeddings.embeddings_bench import Bench, vectors, with_bench

LOST = UpstreamUnavailable("Triton closed the connection before it answered")
NOT_SENT = UpstreamUnavailable("Triton does not listen", is_not_sent=True)
DEAD = make_answer(500, b'{"error":"Stub process \'m_0_0\' is not healthy."}')


def restart(bench: Bench) -> None:
    """Let Triton end in a moment, and be up again 3 s later."""

    def up() -> None:
        upstream = FakeUpstream()
        upstream.http.answer = bench.triton
        bench.servers.up(upstream)

    loop = asyncio.get_running_loop()
    loop.call_later(0.1, bench.servers.lost, "Triton has crashed")
    loop.call_later(3.1, up)


def once(*failures: Exception | HttpAnswer, poison: bytes = b"") -> object:
    """A `FakeTextModel.failure` for the first requests with `poison`, one failure each."""
    left = list(failures)

    def fail(request: HttpRequest) -> HttpAnswer | None:
        if poison not in bytes(request.body) or not left:
            return None
        failure = left.pop(0)
        if isinstance(failure, Exception):
            raise failure
        return failure

    return fail


@pytest.mark.parametrize("fault", [LOST, NOT_SENT], ids=["a lost connection", "a refused one"])
def test_a_call_waits_for_the_next_triton_and_only_the_lost_batch_is_computed_again(fault: Exception) -> None:
    async def test(bench: Bench) -> None:
        bench.triton.failure = once(fault, poison=b"nine")  # type: ignore[assignment]
        restart(bench)
        asked = [b"a", b"b", b"c", b"d", b"nine", b"elevens"]
        assert vectors(await bench.embed(*asked)) == [embedding_of(text) for text in asked]
        assert sorted(map(len, bench.triton.batches)) == [2, 4]
        assert bench.recorder.outcomes == [Outcome.ANSWERED]

    with_bench(test)


def test_a_dead_stubs_answer_is_no_callers_where_it_is_replaced() -> None:
    async def test(bench: Bench) -> None:
        bench.servers.suspect = lambda *suspected: bench.servers.under_repair.show({})
        bench.triton.failure = once(DEAD)  # type: ignore[assignment]
        assert vectors(await bench.embed(b"a")) == [embedding_of(b"a")]

    with_bench(test)


def test_a_batch_under_which_two_processes_die_is_refused_and_others_are_not() -> None:
    async def test(bench: Bench) -> None:
        bench.triton.failure = once(*[DEAD] * 9, poison=b"poison")  # type: ignore[assignment]
        with pytest.raises(UpstreamFailed, match="not healthy"):
            await bench.embed(b"poison")
        await asyncio.sleep(6.0)
        for _ in range(2):
            with pytest.raises(QueryOfDeath):
                await bench.embed(b"poison")
        assert vectors(await bench.embed(b"a")) == [embedding_of(b"a")]

    with_bench(test)


def test_what_waits_for_the_next_triton_is_not_charged() -> None:
    async def test(bench: Bench) -> None:
        bench.triton.failure = once(LOST)  # type: ignore[assignment]
        restart(bench)
        await bench.embed(b"a")
        (event,) = bench.meter.events
        assert event.compute_units is not None
        assert event.compute_units < 1000.0
        assert event.server == "triton"

    with_bench(test)
