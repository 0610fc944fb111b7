"""Measures the requests of one model, and what the gateway and Triton tell of them; `cli/planning/profile` prints it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

from control_plane.profiling.callers import ask_all
from control_plane.profiling.stages import Asked, Counted, Stage, at_server, measured, stages

_REPEATS = 20
_ALL = "all, at its client"


class Gateway(Protocol):
    """Port to a running gateway, as one client of one model sees it, over a connection of its own."""

    def ping(self) -> None:
        """Send a request that no model computes."""

    def infer(self, request: bytes) -> Mapping[str, float]:
        """Have an encoded request computed; return the milliseconds that the gateway tells of it (`protocols/server_timing`)."""

    def config(self) -> Mapping[str, Any]:
        """Return the model's configuration."""

    def statistics(self, model: str) -> Any:
        """Return Triton's statistics of a model, as the statistics extension answers them."""


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
    p50_ms: float
    p99_ms: float
    stages: list[Stage]
    server: Stage | None
    """Time in Triton and on the way there, whose parts are among the stages; None where the gateway does not tell it."""
    computed: int
    """Requests of the model that Triton computed meanwhile: fewer where some were answered from a cache, more where others asked."""
    repeat_ms: float | None
    """Mean of a request that is sent again, where it is answered from a cache; None: it is computed again."""
    client_busy: float
    """CPU seconds of this process by second: near 1 its own threads wait for each other, which is part of the network's time."""


def measure(callers: Sequence[Gateway], model: str, requests: Iterable[bytes], *, protocol: str = "HTTP") -> Profile:
    """Have all callers send encoded requests, of which the first only warms up; each may be megabytes, so it is made when its turn
    comes, which counts for nothing. Raises as the callers do."""
    pending, gateway = iter(requests), callers[0]
    first = next(pending)
    gateway.infer(first)
    for each in callers[1:]:
        each.ping()  # opens its connection
    steps = list(dict.fromkeys(each["model_name"] for each in gateway.config().get("ensemble_scheduling", {}).get("step", [])))
    before = {name: Counted.of(gateway.statistics(name)) for name in (model, *steps)}
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    asked = ask_all(callers, pending, _asked)
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
    counted = {name: Counted.of(gateway.statistics(name)).since(earlier) for name, earlier in before.items()}
    total = measured(_ALL, [each.total_ms for each in asked])
    return Profile(
        protocol=protocol,
        concurrency=len(callers),
        requests=len(asked),
        requests_per_s=len(asked) / took_s,
        total_ms=total.ms,
        p50_ms=total.p50_ms or 0.0,
        p99_ms=total.p99_ms or 0.0,
        stages=stages(asked, model=counted[model], steps=[(step, counted[step]) for step in steps], protocol=protocol),
        server=at_server(asked),
        computed=counted[model].requests,
        repeat_ms=_repeat_ms(gateway, model, first),
        client_busy=cpu_s / took_s,
    )


def _repeat_ms(gateway: Gateway, model: str, request: bytes) -> float | None:
    before = Counted.of(gateway.statistics(model)).requests
    ms = fmean(_asked(gateway, request).total_ms for _ in range(_REPEATS))
    return ms if Counted.of(gateway.statistics(model)).requests - before < _REPEATS else None


def _asked(gateway: Gateway, request: bytes) -> Asked:
    began_s = time.perf_counter()
    told_ms = gateway.infer(request)
    return Asked(1e3 * (time.perf_counter() - began_s), told_ms)
