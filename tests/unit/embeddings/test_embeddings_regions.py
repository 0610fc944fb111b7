"""Embeddings calls that this region cannot answer, and other regions that answer as a test says."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from control_plane.core.errors import Overloaded, UpstreamUnavailable
from control_plane.core.infer_call import Outcome
from control_plane.embeddings.embeddings import EmbeddingsAnswer, SendableEmbeddingsCall
from control_plane.inference.dispatch.region_failover import OtherRegions, RegionFailover
from control_plane.protocols.http1 import HttpAnswer, make_answer
from tests.aio import settle
from tests.fakes.triton.text_model import embedding_of
from tests.unit.embeddings.embeddings_bench import Bench, texts, vectors, with_bench

THEIRS = make_answer(200, b'{"data":[]}')


class Regions:
    """One other region, which is well."""

    is_any_well = True

    def __init__(self, answer: HttpAnswer | None) -> None:
        self.answer, self.asked_for = answer, list[object]()

    def asked(self) -> None: ...

    def would_take(self, running: Any, *, left_s: float) -> bool:
        return self.answer is not None

    async def ask(self, request: Any, running: Any, *, left_s: float, is_model_missing: bool) -> HttpAnswer | None:
        self.asked_for.append(request)
        if self.answer is not None:
            running.answered_in("there")
        return self.answer


def know(bench: Bench, regions: Regions) -> None:
    now_s, dispatch = asyncio.get_running_loop().time, cast("Any", bench.inference.dispatch)
    bench.inference.region_failover = failover = RegionFailover(cast("OtherRegions", regions), bench.servers, dispatch, now_s=now_s)
    dispatch.may_leave = failover.may_leave


async def embed(bench: Bench, *those: bytes, **fields: str) -> EmbeddingsAnswer | HttpAnswer:
    request = texts(*those, fields=fields)
    return await bench.service.embed_anywhere(cast("SendableEmbeddingsCall", request))


def test_a_call_stays_while_it_can_be_answered_here() -> None:
    async def test(bench: Bench) -> None:
        regions = Regions(THEIRS)
        know(bench, regions)
        answer = await embed(bench, b"a")
        assert isinstance(answer, EmbeddingsAnswer)
        assert vectors(answer) == [embedding_of(b"a")]
        assert not regions.asked_for

    with_bench(test)


@pytest.mark.parametrize("error", [Overloaded("busy"), UpstreamUnavailable("down", is_not_sent=True)])
def test_one_that_is_refused_here_is_answered_there_and_counted_there(error: Exception) -> None:
    async def test(bench: Bench) -> None:
        know(bench, Regions(THEIRS))

        def fail(request: object) -> HttpAnswer:
            raise error

        bench.triton.failure = fail
        if isinstance(error, UpstreamUnavailable):
            asyncio.get_running_loop().call_later(0.1, bench.servers.lost, "Triton has crashed")
        assert await embed(bench, b"a") is THEIRS
        assert bench.recorder.outcomes == [Outcome.ANSWERED]
        assert [event.server for event in bench.meter.events] == ["region:there"]

    with_bench(test)


def test_the_error_is_this_regions_where_no_other_answers() -> None:
    async def test(bench: Bench) -> None:
        regions = Regions(None)
        know(bench, regions)
        bench.servers.down("Triton is being restarted")
        with pytest.raises(UpstreamUnavailable, match="being restarted"):
            await embed(bench, b"a")
        assert regions.asked_for

    with_bench(test)


def test_another_regions_call_is_a_guest_which_never_leaves() -> None:
    async def test(bench: Bench) -> None:
        regions = Regions(THEIRS)
        know(bench, regions)
        await embed(bench, b"a", **{"tidegate-hop": "there"})
        bench.servers.down("Triton is being restarted")
        with pytest.raises(UpstreamUnavailable):
            await embed(bench, b"b", **{"tidegate-hop": "there"})
        assert not regions.asked_for
        assert bench.inference.region_failover is not None
        assert bench.inference.region_failover.guests == 2

    with_bench(test)


@pytest.mark.parametrize("is_cacheable", [True, False])
@pytest.mark.parametrize("answer", [THEIRS, None])
def test_callers_that_are_taken_back_from_a_silent_triton_are_answered(answer: HttpAnswer | None, is_cacheable: bool) -> None:
    async def test(bench: Bench) -> None:
        bench.load(is_cacheable=is_cacheable)
        regions = Regions(answer)
        know(bench, regions)
        bench.upstream.http.calls.hold()
        loop = asyncio.get_running_loop()
        asking = [loop.create_task(embed(bench, b"a")) for _ in range(3)]
        await settle()
        bench.servers.fell_silent()
        loop.call_later(1.0, bench.servers.heard)
        loop.call_later(1.0, bench.upstream.http.calls.may_answer.set)
        for each in await asyncio.gather(*asking):
            assert each is THEIRS if answer else isinstance(each, EmbeddingsAnswer)
        assert bench.recorder.outcomes == [Outcome.ANSWERED] * 3

    with_bench(test)
