"""Measures the requests of one model, and what the gateway and Triton tell of them; `cli/planning/profile` prints it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from control_plane.profiling.load import load
from control_plane.profiling.ports import Gateway
from control_plane.profiling.stages import Asked, Counted, Stage, at_server, measured, stages

_REPEATS = 20


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of a model's requests went."""

    protocol: str
    concurrency: int
    """Callers that asked at once."""
    requests: int
    requests_per_s: float
    total_ms: float
    """Mean of one request at its client."""
    p50_ms: float | None
    p99_ms: float | None
    stages: list[Stage]
    server: Stage | None
    """Time in Triton and on the way there, whose parts are among the stages; None where the gateway does not tell it."""
    computed: int
    """Requests of the model that Triton computed meanwhile: fewer where some were answered from a cache, more where others asked."""
    repeat_ms: float | None
    """Mean of a request that is sent again, where it is answered from a cache; None: it is computed again."""
    client_busy: float
    """CPU seconds of each second that this process used: near 1 its threads wait for each other, which is part of the network's time."""


def measure(callers: Sequence[Gateway], model: str, requests: Iterable[bytes], *, protocol: str = "HTTP") -> Profile:
    """Have all callers send encoded requests, of which the first only warms up; each may be megabytes, so it is made when its turn
    comes, which counts for nothing. Raises as the callers do."""
    pending, gateway = iter(requests), callers[0]
    first = next(pending)
    gateway.infer(first)
    loaded = load(callers, model, pending, _asked)
    total = measured("", [each.total_ms for each in loaded.asked])
    return Profile(
        protocol=protocol,
        concurrency=len(callers),
        requests=len(loaded.asked),
        requests_per_s=loaded.per_s,
        total_ms=total.ms,
        p50_ms=total.p50_ms,
        p99_ms=total.p99_ms,
        stages=stages(loaded.asked, model=loaded.model, steps=loaded.steps, protocol=protocol),
        server=at_server(loaded.asked),
        computed=loaded.model.requests,
        repeat_ms=_repeat_ms(gateway, model, first),
        client_busy=loaded.client_busy,
    )


def _repeat_ms(gateway: Gateway, model: str, request: bytes) -> float | None:
    before = Counted.of(gateway.statistics(model)).requests
    ms = fmean(_asked(gateway, request).total_ms for _ in range(_REPEATS))
    return ms if Counted.of(gateway.statistics(model)).requests - before < _REPEATS else None


def _asked(gateway: Gateway, request: bytes) -> Asked:
    began_s = time.perf_counter()
    told_ms = gateway.infer(request)
    return Asked(1e3 * (time.perf_counter() - began_s), told_ms)
