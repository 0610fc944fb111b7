"""Traces of requests that go to more than one server of a fleet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from control_plane.core.infer_call import Frontend
from tests.fakes.spans import Spans
from tests.unit.fleet.routing.hedging_bench import Broken, serving, straggling

pytestmark = pytest.mark.virtual_time

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def of(span: ReadableSpan, name: str) -> Any:
    return dict(span.attributes or {}).get(f"tidegate.{name}")


@pytest.mark.parametrize("frontend", [Frontend.GRPC, Frontend.HTTP])
async def test_a_hedge_is_another_attempt(frontend: Frontend) -> None:
    spans = Spans(ratio=1.0, now_s=asyncio.get_running_loop().time)
    async with serving() as service:
        service.frontend = frontend
        await service.learn()
        straggling(service)
        service.inference.tracer = spans.tracer
        answer = await service.ask()
        sent = service.tritons.sent
        await asyncio.sleep(2.0)
    server, attempts, _ = spans.by_name()
    assert [of(each, "server") for each in attempts] == sent
    assert [of(each, "result") for each in attempts] == ["unfinished", "answered"]
    assert of(server, "server") == answer == sent[1]


async def test_a_resend_is_another_attempt() -> None:
    spans = Spans(ratio=1.0, now_s=asyncio.get_running_loop().time)
    async with serving() as service:
        service.inference.tracer = spans.tracer
        service.tritons.plans = [Broken()]
        answer = await service.ask()
        sent = service.tritons.sent
    server, attempts, _ = spans.by_name()
    assert [(of(each, "server"), of(each, "result")) for each in attempts] == [(sent[0], "Broken"), (answer, "answered")]
    assert of(server, "outcome") == "answered"
