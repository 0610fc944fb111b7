"""A rollout in its shadow behind both frontends over real sockets: what is copied, what is compared, and what nobody notices."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from control_plane.inference.domain.observation import Observation, Pair
from control_plane.objects.domain.rollout import Agreement, Phase, Rollout, Step
from control_plane.objects.domain.route import Route
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.telemetry.request_counts import Copied
from tests.fakes import FakeGrpc, FakeHttp, FakeUpstream
from tests.fakes.cache import keeping
from tests.fakes.copies import copies_of
from tests.fakes.governance import FakeMeter, governance, known_state
from tests.fakes.rollout_steps import steps_of
from tests.fakes.triton.text_model import FakeTextModel
from tests.wire.gateway import gateway, infer_request
from tests.wire.grpc_frontend import frontend, infer_message
from tests.wire.inference.routes.shadow_bench import answering, body, embed, grpc_answering, place, settled, shadowed, text_models

ROUTE = Route("r", "stable", is_repeatable=True)
ROLLOUT = Rollout(
    "r", "0" * 32, "next", "stable", steps_of([1], samples=1, min_s=0.0),
    phase=Phase.SHADOW, shadow=Step(10_000, 5, 0.0), agreement=Agreement("tolerance"),
)  # fmt: skip


def governed(rollout: Rollout = ROLLOUT, route: Route = ROUTE) -> Any:
    known = known_state(routes=(route,))
    known.shadows, known.rollout_ids = {"r": rollout}, {"r": rollout.id}
    return governance(known, meter=FakeMeter(has_log=False))


@pytest.mark.parametrize(
    "how", [{}, {"binary": True}, {"zipped": "stable"}, {"zipped": "next"}], ids=["JSON", "binary", "stable's is zipped", "zipped"]
)
@pytest.mark.parametrize("wrong", [0.0, 1.0])
async def test_answers_are_paired_and_compared(how: dict[str, Any], wrong: float) -> None:
    rights = governed()
    upstream = FakeUpstream(http=FakeHttp(answer=answering(wrong, **how)))
    async with gateway(upstream, governed=rights) as running, shadowed(running.inference, rights) as shadow:
        client = await running.connect()
        for number in range(5):
            answer = await client.ask(infer_request(body(float(number)), model=b"r"))
            assert (answer.status, b"tidegate-model" in answer.head) == (200, False)
            await settled(shadow)
        assert [place(request)[0] for request in upstream.http.requests] == ["stable", "next"] * 5
        seen = running.inference.observations.take()
        assert [each.pair for each in seen] == [Pair(False, bool(wrong))] * 5
        assert len({each.digest for each in seen}) == 5
        assert copies_of(shadow.counts) == {Copied.DIFFERS if wrong else Copied.AGREES: 5}


async def test_no_copy_is_a_request_of_anybodys() -> None:
    rights = governed()
    upstream = FakeUpstream(http=FakeHttp(answer=answering()))
    cached = keeping("stable", "next")
    async with gateway(upstream, governed=rights, cached=cached) as running, shadowed(running.inference, rights) as shadow:
        client = await running.connect()
        for number in (1, 2, 1, 2, 1, 2):
            await client.ask(infer_request(body(float(number)), model=b"r"))
            await settled(shadow)
        assert len(upstream.http.requests) == 4, "hits are not copied"
        running.inference.verbatim.flush_counts()
        assert [record.model_name for record in running.recorder.records] == ["stable"] * 6
        assert {each[1] for each in rights.meter.added} == {"stable"}
        # By its own name the next model computes what it was copied before: no copy has filled the cache.
        await client.ask(infer_request(body(1.0), model=b"next"))
        assert len(upstream.http.requests) == 5
        assert running.inference.in_flight == 0


async def test_a_slow_or_dead_next_model_holds_nobody_up() -> None:
    rights, held = governed(), asyncio.Event()
    answers = answering()

    class Slow(FakeHttp):
        async def send(self, request: HttpRequest, *, timeout_s: float, slot: Any = None) -> HttpAnswer:
            if place(request)[0] == "next":
                await held.wait()
            answer: HttpAnswer = answers(request)
            return answer

    async with gateway(FakeUpstream(http=Slow()), governed=rights) as running, shadowed(running.inference, rights) as shadow:
        client = await running.connect()
        async with asyncio.timeout(5.0):
            for number in range(30):
                assert (await client.ask(infer_request(body(float(number)), model=b"r"))).status == 200
                await asyncio.sleep(0.012)
        assert copies_of(shadow.counts)[Copied.BUSY] >= 10, "one copy at a time is sent to a single server"
        held.set()
        await settled(shadow)


async def test_another_version_of_the_same_model() -> None:
    rights = governed(replace(ROLLOUT, model="stable", version="2", stable_version="1"), replace(ROUTE, version="1"))
    upstream = FakeUpstream(http=FakeHttp(answer=answering(1.0)))
    async with gateway(upstream, governed=rights) as running, shadowed(running.inference, rights) as shadow:
        await (await running.connect()).ask(infer_request(body(1.0), model=b"r"))
        await settled(shadow)
        assert [place(request) for request in upstream.http.requests] == [("stable", "1"), ("stable", "2")]
        assert copies_of(shadow.counts) == {Copied.DIFFERS: 1}


@pytest.mark.parametrize("wrong", [0.0, 1.0])
async def test_the_same_over_grpc(wrong: float) -> None:
    rights = governed()
    async with frontend(FakeGrpc(answer=grpc_answering(wrong)), governed=rights) as bench, shadowed(bench.inference, rights) as shadow:
        for number in range(5):
            message = infer_message(model="r", id_="1", content=number.to_bytes(4, "little"))
            answer = service_pb2.ModelInferResponse.FromString(await bench.call(message=message))
            assert answer.model_name == "stable"
            await settled(shadow)
        assert [each.pair for each in bench.inference.observations.take()] == [Pair(False, bool(wrong))] * 5


async def of_embeddings(next_model: FakeTextModel) -> tuple[Observation, dict[Copied, int]]:
    rights = governed(replace(ROLLOUT, agreement=Agreement("same-space")), replace(ROUTE, is_repeatable=False))
    async with gateway(text_models(next_model), governed=rights) as running, shadowed(running.inference, rights) as shadow:
        await embed(running, *(f"text {number}" for number in range(20)))
        await settled(shadow)
        (seen,) = running.inference.observations.take()
        assert {each[1] for each in rights.meter.added} == {"stable"}
        return seen, dict(copies_of(shadow.counts))


async def test_embeddings_are_copied_in_part() -> None:
    next_model = FakeTextModel("next")
    seen, counts = await of_embeddings(next_model)
    assert (seen.pair, counts) == (Pair(False, False), {Copied.AGREES: 1})


async def test_embeddings_that_cannot_be_computed() -> None:
    seen, counts = await of_embeddings(FakeTextModel("next", failure=lambda _: make_answer(500, b'{"error":"x"}')))
    assert (seen.is_fault, seen.pair, counts) == (True, Pair(False), {Copied.FAILED: 1})
