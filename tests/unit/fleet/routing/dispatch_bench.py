"""Requests for a fleet's dispatcher, and questions about what became of them."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any

from control_plane.core.infer_call import InferCall, Outcome
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.triton.ports import Upstream
from tests.unit.fleet.fleet_bench import FleetBench, call

_NUMBERS = itertools.count()


@dataclass
class Request:
    """The part of `inference/requests.InferRequest` and `GenerateRequest` that a dispatcher needs; `answers`
    are given one after the other."""

    answers: list[object] = field(default_factory=lambda: [make_answer(200, b"")])
    takes_s: float = 0.0
    sent: list[tuple[Upstream, float]] = field(default_factory=list)
    text: str = field(default_factory=lambda: f"request {next(_NUMBERS)}")

    async def send(self, server: Upstream, *, timeout_s: float) -> Any:
        self.sent.append((server, timeout_s))
        await asyncio.sleep(self.takes_s)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    stream = send

    def content(self, call: InferCall) -> tuple[bytes, ...]:
        return (self.text.encode(),)

    def outcome(self, answer: Any) -> Outcome:
        return {200: Outcome.ANSWERED, 404: Outcome.MODEL_NOT_FOUND}.get(answer.status, Outcome.UPSTREAM_ERROR)


@dataclass
class KeptRequest(Request):
    """Request whose slot is kept when it is cancelled, as `triton/adapters` do while Triton computes it."""

    kept: list[Upstream] = field(default_factory=list)

    async def send(self, server: Upstream, *, timeout_s: float) -> Any:
        try:
            return await super().send(server, timeout_s=timeout_s)
        except asyncio.CancelledError:
            self.kept.append(server)
            raise

    stream = send


def status(answer: Any) -> int:
    assert isinstance(answer, HttpAnswer)
    return answer.status


async def send(bench: FleetBench, request: Request, *, timeout_s: float = 60.0) -> Any:
    return await bench.dispatch.send(request, call("a"), timeout_s=timeout_s)  # type: ignore[arg-type]


def idle(bench: FleetBench) -> bool:
    servers = bench.state.fleet.servers.values()
    return all(server.work_s == 0.0 and all(replica.in_flight == 0 for replica in server.replicas.values()) for server in servers)
