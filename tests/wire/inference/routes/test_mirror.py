"""A route's mirror behind both frontends over real sockets: what is copied to it, and what its callers never notice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from control_plane.objects.domain.route import WHOLE, Mirror, Route, Target
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.telemetry.request_counts import Copied, CopiedCount, Half
from tests.fakes import FakeGrpc, FakeHttp, FakeUpstream
from tests.fakes.cache import keeping
from tests.fakes.copies import copies_of
from tests.fakes.governance import FakeMeter, governance, known_state
from tests.fakes.triton.text_model import FakeTextModel
from tests.wire.gateway import gateway, infer_request
from tests.wire.grpc_frontend import frontend, infer_message
from tests.wire.inference.routes.shadow_bench import answering, body, embed, grpc_answering, place, settled, shadowed, text_models

ROUTE = Route("r", "stable", is_repeatable=True, mirror=Mirror("next", weight=WHOLE))


def governed(route: Route = ROUTE) -> Any:
    return governance(known_state(routes=(route,)), meter=FakeMeter(has_log=False))


def counted(shadow: Any) -> list[CopiedCount]:
    return [each for each in shadow.counts.results() if each.count]


async def test_requests_are_copied_and_no_copy_is_a_request_of_anybodys() -> None:
    rights, upstream = governed(), FakeUpstream(http=FakeHttp(answer=answering(1.0)))
    async with gateway(upstream, governed=rights, cached=keeping("stable")) as running, shadowed(running.inference, rights) as shadow:
        client = await running.connect()
        for number in (1, 2, 1, 2):
            answer = await client.ask(infer_request(body(float(number)), model=b"r"))
            assert (answer.status, b'"stable"' in answer.body, b"tidegate-model" in answer.head) == (200, True, False)
            await settled(shadow)
        assert [place(request)[0] for request in upstream.http.requests] == ["stable", "next"] * 2, "hits are not copied"
        assert counted(shadow) == [CopiedCount("r", "next", Copied.ANSWERED, 2)]
        assert [(each.half, sum(each.buckets)) for each in shadow.counts.durations()] == [(Half.ORIGINAL, 2), (Half.COPY, 2)]
        running.inference.verbatim.flush_counts()
        assert [record.model_name for record in running.recorder.records] == ["stable"] * 4
        assert {each[1] for each in rights.meter.added} == {"stable"}
        assert (running.inference.observations.take(), running.inference.in_flight) == ((), 0)


async def test_of_a_route_with_targets_what_its_own_model_answers_is_copied() -> None:
    rights = governed(replace(ROUTE, targets=(Target("target", 5000),)))
    upstream = FakeUpstream(http=FakeHttp(answer=answering()))
    async with gateway(upstream, governed=rights) as running, shadowed(running.inference, rights) as shadow:
        client = await running.connect()
        for number in range(20):
            await client.ask(infer_request(body(float(number)), model=b"r"))
            await settled(shadow)
        sent = [place(request)[0] for request in upstream.http.requests]
        assert 0 < sent.count("target") < 20
        assert sent.count("next") == sent.count("stable") == 20 - sent.count("target")
        assert all(before == "stable" for before, after in pairwise(sent) if after == "next")


async def test_the_same_over_grpc() -> None:
    rights, upstream = governed(), FakeGrpc(answer=grpc_answering(1.0))
    async with frontend(upstream, governed=rights) as bench, shadowed(bench.inference, rights) as shadow:
        for number in range(5):
            message = infer_message(model="r", id_="1", content=np.float32(number).tobytes())
            assert service_pb2.ModelInferResponse.FromString(await bench.call(message=message)).model_name == "stable"
            await settled(shadow)
        assert counted(shadow) == [CopiedCount("r", "next", Copied.ANSWERED, 5)]


@pytest.mark.parametrize("route", [ROUTE, replace(ROUTE, targets=(Target("target", 0),))], ids=["one model", "with targets"])
async def test_embeddings_are_copied_and_their_times_are_not_compared(route: Route) -> None:
    rights = governed(replace(route, is_repeatable=False))
    async with gateway(text_models(FakeTextModel("next")), governed=rights) as running, shadowed(running.inference, rights) as shadow:
        await embed(running, *(f"text {number}" for number in range(20)))
        await settled(shadow)
        assert counted(shadow) == [CopiedCount("r", "next", Copied.ANSWERED, 1)]
        assert shadow.counts.durations() == ()


@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "missing"])
async def test_a_mirror_that_is_frozen_or_missing_neither_fails_nor_slows_a_caller(is_frozen: bool) -> None:
    rights, held, answers = governed(), asyncio.Event(), answering()

    class Triton(FakeHttp):
        async def send(self, request: HttpRequest, *, timeout_s: float, slot: Any = None) -> HttpAnswer:
            if place(request)[0] != "next":
                return answers(request)  # type: ignore[no-any-return]
            if is_frozen:
                await held.wait()
            return make_answer(404, b'{"error":"Request for unknown model: \'next\' is not found"}')

    async with gateway(FakeUpstream(http=Triton()), governed=rights) as running, shadowed(running.inference, rights) as shadow:
        client = await running.connect()
        async with asyncio.timeout(5.0):  # no copy of a frozen one ends before the last caller has his answer
            for number in range(30):
                assert (await client.ask(infer_request(body(float(number)), model=b"r"))).status == 200
                await asyncio.sleep(0.012)
        assert (copies_of(shadow.counts)[Copied.BUSY] >= 10) is is_frozen, "one copy at a time is sent to a single server"
        held.set()
        await settled(shadow)
        assert copies_of(shadow.counts)[Copied.UNCOUNTED] >= 1, "a copy was sent"
        assert set(copies_of(shadow.counts)) <= {Copied.UNCOUNTED, Copied.BUSY}
        assert running.inference.observations.take() == ()
