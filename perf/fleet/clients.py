"""Clients of `perf.fleet`: each request of a trace at its time, whether or not those before it have been answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from math import ceil
from random import Random

import httpx

from control_plane.fleet.simulation.workload import Request
from perf.fleet.models import INPUT, OUTPUT

Serving = Callable[[Request], AbstractAsyncContextManager[str]]
"""The URL to send a request to, for as long as it is there."""

PATIENCE_S = 300.0
"""Nobody gives up: what would have been refused is seen in the latencies."""
_TOKENS = (8, 64)
_VOCABULARY = 8_000
_SEED = 21


@dataclass(slots=True)
class Answers:
    """Latencies and failures of a trace's requests."""

    latencies_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    asked_s: dict[str, list[float]] = field(default_factory=dict)
    """By model: what each request took from the moment when it was known where to send it."""

    def percentile_ms(self, percent: float) -> float:
        """Nearest rank, of those that were answered."""
        if not self.latencies_s:
            return float("nan")
        ordered = sorted(self.latencies_s)
        return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)] * 1000


async def replay(requests: Sequence[Request], serving: Serving) -> Answers:
    """Send all, at their times from now on; returns when the last one has its answer."""
    answers, random = Answers(), Random(_SEED)
    loop = asyncio.get_running_loop()
    async with connections() as session, asyncio.TaskGroup() as tasks:
        began_s = loop.time()
        for request in requests:
            due_s = began_s + request.at_s
            await asyncio.sleep(due_s - loop.time())
            tasks.create_task(_ask(session, request._replace(at_s=due_s), text_of(random), serving, answers))
    return answers


def connections() -> httpx.AsyncClient:
    """As many as there are requests in flight."""
    return httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=PATIENCE_S, trust_env=False)


async def ask(session: httpx.AsyncClient, url: str, model: str, body: bytes) -> str:
    """What is wrong with the answer; empty if nothing is."""
    headers = {"content-type": "application/json", "tidegate-timeout-ms": f"{PATIENCE_S * 1000:.0f}"}
    try:
        answer = await session.post(f"{url}/v2/models/{model}/infer", content=body, headers=headers)
    except httpx.HTTPError as exc:
        return repr(exc)[:200]
    return "" if answer.status_code == 200 and f'"{OUTPUT}"' in answer.text else f"{answer.status_code} {answer.text[:200]}"


def text_of(random: Random) -> bytes:
    """A request for the vector of one text."""
    tokens = [random.randrange(_VOCABULARY) for _ in range(random.randint(*_TOKENS))]
    return json.dumps({"inputs": [{"name": INPUT, "shape": [1, len(tokens)], "datatype": "INT64", "data": tokens}]}).encode()


async def _ask(session: httpx.AsyncClient, request: Request, body: bytes, serving: Serving, answers: Answers) -> None:
    """`request.at_s` is on the loop's clock: a client that is late itself is part of the latency."""
    loop = asyncio.get_running_loop()
    async with serving(request) as url:
        sent_s = loop.time()
        wrong = await ask(session, url, request.model, body)
        answered_s = loop.time()
    if wrong:
        answers.failures.append(f"{request.model}: {wrong}")
    else:
        answers.latencies_s.append(answered_s - request.at_s)
        answers.asked_s.setdefault(request.model, []).append(answered_s - sent_s)
