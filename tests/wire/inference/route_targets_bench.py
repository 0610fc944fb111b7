"""Routes with several targets over fakes that say which model answered."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from control_plane.objects.domain.route import Route, Target
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from tests.fakes.governance import FakeMeter, governance, known_state
from tests.wire.gateway import Answer, Client, infer_request

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
