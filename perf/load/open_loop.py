"""Callers that do not wait for each other: requests come as they come (Poisson), however long the answers take, over gRPC.

Latency counts from when a request was due, so that a client that is late itself does not hide what waited.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import uvloop

from control_plane.core.endpoints import TcpAddress
from control_plane.protocols.grpc import GrpcHead
from control_plane.triton.adapters.grpc.client import GrpcClient
from control_plane.triton.ports import GrpcCall
from perf.load.echo_requests import GRPC_PATH

_DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class Answered:
    """Result of one run."""

    latencies_ms: Sequence[float]
    """Latencies of all answers, also those that say what went wrong."""
    good_ms: Sequence[float]
    """Latencies of the good ones."""
    late_ms: Sequence[float]
    """For each latency, how much later than planned the client sent the request."""
    errors: int

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.latencies_ms, percent)) if len(self.latencies_ms) else float("nan")


def ask(address: str, frames: Sequence[bytes], *, requests: int, per_s: float, seed: int, deadline_s: float = _DEADLINE_S) -> Answered:
    """Send so many requests, these ones in turns, on average `per_s` of them a second, and wait for all answers."""
    return uvloop.run(_ask(address, frames, requests, per_s, random.Random(seed), deadline_s))


async def _ask(address: str, frames: Sequence[bytes], requests: int, per_s: float, draw: random.Random, deadline_s: float) -> Answered:
    host, _, port = address.rpartition(":")
    client = GrpcClient(TcpAddress(host, int(port)))
    head = GrpcHead(GRPC_PATH, ((b"content-type", b"application/grpc"),), timeout_s=deadline_s)  # told only if the head has it
    calls = [GrpcCall(head, frame) for frame in frames]
    latencies_ms, good_ms, late_ms, errors = [], [], [], 0

    async def one(call: GrpcCall, due_s: float) -> None:
        nonlocal errors
        sent_late_ms = 1e3 * (time.perf_counter() - due_s)
        answer = await client.unary(call, timeout_s=deadline_s)
        late_ms.append(sent_late_ms)
        latencies_ms.append(1e3 * (time.perf_counter() - due_s))
        if answer.code == 0:
            good_ms.append(latencies_ms[-1])
        else:
            errors += 1

    try:
        async with asyncio.TaskGroup() as tasks:
            due_s = time.perf_counter()
            for number in range(requests):
                due_s += draw.expovariate(per_s)
                if (left_s := due_s - time.perf_counter()) > 0:
                    await asyncio.sleep(left_s)
                tasks.create_task(one(calls[number % len(calls)], due_s))
    finally:
        await client.close()
    return Answered(latencies_ms, good_ms, late_ms, errors)
