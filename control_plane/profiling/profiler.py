"""Measures the requests of one model, one after the other, and what Triton counts meanwhile; `cli/planning/profile` prints it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Protocol

from control_plane.profiling.stages import Counted, Stage, stages

_PINGS = 50
_REPEATS = 20


class Gateway(Protocol):
    """Port to a running gateway, as a client of one model sees it."""

    def ping(self) -> None:
        """Send a request that no model computes."""

    def encoded(self, request: Mapping[str, Any]) -> bytes:
        """Write a request in JSON as this gateway is asked."""

    def infer(self, request: bytes) -> None:
        """Have an encoded request computed."""

    def config(self) -> Mapping[str, Any]:
        """Return the model's configuration."""

    def statistics(self, model: str) -> Any:
        """Return Triton's statistics of a model, as the statistics extension answers them."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of a model's requests went."""

    requests: int
    total_ms: float
    """Mean of one request at its client."""
    stages: list[Stage]
    computed: int
    """Requests of the model that Triton computed meanwhile: fewer where some were answered from a cache, more where others asked."""
    repeat_ms: float | None
    """Mean of a request that is sent again, where it is answered from a cache; None: it is computed again."""


def measure(gateway: Gateway, model: str, requests: Iterable[bytes], *, protocol: str = "HTTP") -> Profile:
    """Send encoded requests, of which the first only warms up; each may be megabytes, so it is made when its turn comes, which
    counts for nothing. Raises as the gateway does."""
    pending = iter(requests)
    request = next(pending)
    gateway.infer(request)
    network_ms = _mean_ms(gateway.ping, _PINGS)
    steps = list(dict.fromkeys(each["model_name"] for each in gateway.config().get("ensemble_scheduling", {}).get("step", [])))
    names = [model, *steps]
    before = {name: Counted.of(gateway.statistics(name)) for name in names}
    took_s = []
    for request in pending:
        took_s.append(_took_s(partial(gateway.infer, request)))
    total_ms = 1e3 * fmean(took_s)
    counted = {name: Counted.of(gateway.statistics(name)).since(before[name]) for name in names}
    parts = [(step, counted[step]) for step in steps]
    found = stages(total_ms=total_ms, network_ms=network_ms, model=counted[model], steps=parts, protocol=protocol)
    return Profile(len(took_s), total_ms, found, counted[model].requests, _repeat_ms(gateway, model, request))


def _repeat_ms(gateway: Gateway, model: str, request: bytes) -> float | None:
    before = Counted.of(gateway.statistics(model)).requests
    ms = _mean_ms(lambda: gateway.infer(request), _REPEATS)
    return ms if Counted.of(gateway.statistics(model)).requests - before < _REPEATS else None


def _mean_ms(call: Callable[[], None], times: int) -> float:
    return 1e3 * fmean([_took_s(call) for _ in range(times)])


def _took_s(call: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s
