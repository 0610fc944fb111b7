"""Routes with several targets over gRPC, on streams, for embeddings and for generated answers."""

from __future__ import annotations

import json
from dataclasses import replace

from tritonclient.grpc import service_pb2

from control_plane.objects.domain.route import Target
from control_plane.protocols.grpc import GrpcAnswer, status_answer
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.ports import GrpcCall
from tests.fakes import FakeGrpc, FakeHttp, FakeHttpStream, FakeUpstream
from tests.fakes.cache import keeping
from tests.fakes.triton.text_model import FakeTextModel
from tests.wire.gateway import Answer, Client, Gateway, gateway
from tests.wire.grpc_frontend import frontend, infer_message, message_of
from tests.wire.inference.routes.route_targets_bench import (
    BOTH,
    HALF,
    ask,
    content,
    echo,
    failing,
    governed,
    grpc_echo,
    model_in,
    of_stream,
    said,
    told,
)


def grpc_failing(call: GrpcCall) -> GrpcAnswer:
    asked = service_pb2.ModelInferRequest.FromString(message_of(call))
    return status_answer(13, "out of order") if asked.model_name == "canary" else grpc_echo(call)


async def test_the_same_over_grpc() -> None:
    async with frontend(FakeGrpc(answer=grpc_echo), cached=keeping(*BOTH), governed=governed(HALF)) as bench:
        rounds = [[await told(bench, number) for number in range(30)] for _ in range(3)]
        assert rounds[0] == rounds[1] == rounds[2]
        assert set(rounds[0]) == set(BOTH)
        assert bench.upstream.grpc.calls.answered == 30
        chosen = [await told(bench, number, metadata=(("tidegate-target", "canary"),)) for number in range(5)]
        assert set(chosen) == {"canary"}


async def test_the_stable_model_stands_in_over_grpc() -> None:
    route = replace(HALF, targets=(Target("canary", 500),), is_repeatable=True)
    async with frontend(FakeGrpc(answer=grpc_failing), governed=governed(route)) as bench:
        assert {await told(bench, number) for number in range(150)} == {"stable"}


async def test_one_model_for_a_stream() -> None:
    async with frontend(FakeGrpc(answer=grpc_echo), governed=governed(HALF)) as bench:
        seen = []
        for first in range(12):
            models = await of_stream(bench, [infer_message(model="r", content=content(first * 100 + number)) for number in range(6)])
            assert len(set(models)) == 1
            seen.append(models[0])
        assert set(seen) == set(BOTH)


async def test_the_stable_model_stands_in_on_a_stream() -> None:
    route = replace(HALF, targets=(Target("canary", 10_000),), is_repeatable=True)
    async with frontend(FakeGrpc(answer=grpc_failing), governed=governed(route)) as bench:
        assert (await of_stream(bench, [infer_message(model="r", content=content(1))])) == ["stable"]


async def embedded_by(running: Gateway, client: Client, inputs: list[str]) -> tuple[set[str], str]:
    """The models that a call was sent to, and the one that its answer names."""
    data = json.dumps({"model": "r", "input": inputs}).encode()
    running.upstream.http.requests.clear()
    answer = await client.ask(b"POST /v1/embeddings HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))
    assert answer.status == 200, answer.body
    sent = {model_in(request) for request in running.upstream.http.requests if request.target.endswith(b"/infer")}
    (named,) = (line.partition(b": ")[2].decode() for line in answer.head.split(b"\r\n") if line.startswith(b"tidegate-model:"))
    return sent, named


def text_models(failing: str = "") -> FakeUpstream:
    models = {
        name: FakeTextModel(name, failure=lambda _: make_answer(500, b'{"error":"x"}')) if name == failing else FakeTextModel(name)
        for name in BOTH
    }
    return FakeUpstream(http=FakeHttp(answer=lambda request: models[model_in(request)](request)))


async def test_embeddings_of_one_call_are_of_one_model() -> None:
    async with gateway(text_models(), governed=governed(HALF)) as running:
        client = await running.connect()
        seen = [await embedded_by(running, client, [f"{number} {text}" for text in range(40)]) for number in range(12)]
        assert all(sent == {named} for sent, named in seen)
        assert {named for _, named in seen} == set(BOTH)


async def test_the_stable_model_stands_in_for_embeddings() -> None:
    route = replace(HALF, targets=(Target("canary", 10_000),))
    async with gateway(text_models("canary"), governed=governed(route)) as running:
        assert await embedded_by(running, await running.connect(), ["a"]) == (set(BOTH), "stable")


async def test_one_with_a_small_part_costs_nobody_anything_from_the_first_request_on() -> None:
    """Its requests may come at once, before the retry budget has anything."""
    route = replace(HALF, targets=(Target("canary", 500),), is_repeatable=True)
    async with gateway(FakeUpstream(http=FakeHttp(answer=echo)), governed=governed(route)) as running:
        client = await running.connect()
        of_canary = [number for number in range(200) if said(await ask(client, float(number))) == "canary"]
    assert len(of_canary) >= 4
    async with gateway(FakeUpstream(http=FakeHttp(answer=failing)), governed=governed(route)) as running:
        client = await running.connect()
        assert [said(await ask(client, float(number))) for number in of_canary] == ["stable"] * len(of_canary)


def generate(number: int, verb: bytes = b"generate") -> bytes:
    data = b'{"text_input":"%d"}' % number
    return b"POST /v2/models/r/%b HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (verb, len(data), data)


def named(answer: Answer) -> str:
    return answer.head.partition(b"tidegate-model: ")[2].partition(b"\r\n")[0].decode()


async def test_generated_answers_say_which_model_they_are_of() -> None:
    async with gateway(FakeUpstream(http=FakeHttp(answer=by_target)), governed=governed(HALF)) as running:
        client = await running.connect()
        answers = [await client.ask(generate(number)) for number in range(30)]
        assert {named(answer) for answer in answers} == set(BOTH)
        assert all(named(answer) in answer.body.decode() for answer in answers)
        running.upstream.http.streams = lambda request: FakeHttpStream().put(b"2\r\nhi\r\n0\r\n\r\n", None)
        await client.send(generate(1, b"generate_stream"))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"\r\ntidegate-model: %b\r\n" % model_in(running.upstream.http.requests[-1]).encode() in head
        assert head.count(b"\r\n\r\n") == 1


async def test_the_stable_model_stands_in_for_one_that_generates_nothing() -> None:
    route = replace(HALF, targets=(Target("canary", 10_000),))

    def missing(request: HttpRequest) -> HttpAnswer:
        return make_answer(404, b'{"error":"unknown model"}') if model_in(request) == "canary" else by_target(request)

    async with gateway(FakeUpstream(http=FakeHttp(answer=missing)), governed=governed(route)) as running:
        client = await running.connect()
        assert [(answer.status, named(answer)) for answer in [await client.ask(generate(1))]] == [(200, "stable")]


def by_target(request: HttpRequest) -> HttpAnswer:
    return make_answer(200, json.dumps({"of": model_in(request)}).encode())
