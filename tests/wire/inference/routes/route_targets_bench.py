"""Routes with several targets over fakes that say which model answered."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from tritonclient.grpc import service_pb2

from control_plane.objects.domain.route import Route, Target
from control_plane.protocols.grpc import GrpcAnswer, message_answer
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.ports import GrpcCall
from tests.fakes.governance import FakeMeter, governance, known_state
from tests.wire.gateway import Answer, Client, infer_request
from tests.wire.grpc_frontend import Bench, infer_message, message_of

HALF = Route("r", "stable", targets=(Target("canary", 5000),))


STUCK = replace(HALF, sticky="header:x-user")


BOTH = ("stable", "canary")


def governed(*routes: Route, **more: Any) -> Any:
    return governance(known_state(routes=routes, **more), meter=FakeMeter(has_log=False))


def body(value: float, **more: Any) -> bytes:
    return json.dumps({**more, "inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [value]}]}).encode()


def model_in(request: HttpRequest) -> str:
    return request.target.split(b"/")[3].decode()


def echo(request: HttpRequest) -> HttpAnswer:
    asked = json.loads(request.body)
    given = {"id": asked["id"]} if asked.get("id") else {}
    return make_answer(200, json.dumps({**given, "model_name": model_in(request)}, separators=(",", ":")).encode())


def failing(request: HttpRequest) -> HttpAnswer:
    return make_answer(500, b'{"error":"out of order"}') if model_in(request) == "canary" else echo(request)


def said(answer: Answer) -> str:
    """The model that the answer's head names, which is the one that its body names."""
    lines = [line.partition(b": ")[2].decode() for line in answer.head.split(b"\r\n") if line.startswith(b"tidegate-model:")]
    assert len(lines) == 1, answer.head
    if answer.status == 200:
        assert json.loads(answer.body)["model_name"] == lines[0]
    return lines[0]


async def ask(client: Client, value: float, *, headers: bytes = b"", **more: Any) -> Answer:
    return await client.ask(infer_request(body(value, **more), headers=headers, model=b"r"))


def grpc_echo(call: GrpcCall) -> GrpcAnswer:
    asked = service_pb2.ModelInferRequest.FromString(message_of(call))
    return message_answer(service_pb2.ModelInferResponse(model_name=asked.model_name, id=asked.id).SerializeToString())


def content(number: int) -> bytes:
    return number.to_bytes(4, "little")


async def told(bench: Bench, number: int, **options: Any) -> str:
    call = bench.call(message=infer_message(model="r", id_="1234", content=content(number)), **options)
    answer = service_pb2.ModelInferResponse.FromString(await call)
    trailers = dict(await call.trailing_metadata())
    assert trailers["tidegate-model"] == answer.model_name
    return str(answer.model_name)


async def of_stream(bench: Bench, messages: list[bytes]) -> list[str]:
    stream = bench.stream()
    models = []
    for message in messages:
        await stream.write(message)
        frame = await asyncio.wait_for(stream.read(), 10)
        answer = service_pb2.ModelStreamInferResponse.FromString(frame)
        models.append(answer.infer_response.model_name or answer.error_message)
    await stream.done_writing()
    return models
