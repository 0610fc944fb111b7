"""Load of a model by callers in a closed loop, and what Triton counted meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from control_plane.profiling.callers import ask_all
from control_plane.profiling.ports import Gateway
from control_plane.profiling.stages import Counted

AskedT = TypeVar("AskedT")


@dataclass(frozen=True, slots=True)
class LoadResult(Generic[AskedT]):
    """Requests that have been answered."""

    asked: Sequence[AskedT]
    """What the callers have noted of each request, such as its latency; of one request at least."""
    took_s: float
    client_busy: float
    """CPU seconds of each second that this process used."""
    model: Counted
    """Triton's own counts of the model over the time of this load."""
    steps: Sequence[tuple[str, Counted]]
    """Triton's counts of each model that is a step of it, by name; empty where the model is no ensemble."""

    @property
    def per_s(self) -> float:
        return len(self.asked) / self.took_s


def load(callers: Sequence[Gateway], model: str, requests: Iterable[bytes], ask: Callable[[Gateway, bytes], AskedT]) -> LoadResult[AskedT]:
    """Have all callers send the requests by `ask`. Raises as the callers do."""
    gateway = callers[0]
    for each in callers[1:]:
        each.ping()  # opens its connection
    steps = list(dict.fromkeys(each["model_name"] for each in gateway.config().get("ensemble_scheduling", {}).get("step", [])))
    before = {name: Counted.of(gateway.statistics(name)) for name in (model, *steps)}
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    asked = ask_all(callers, requests, ask)
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
    counted = {name: Counted.of(gateway.statistics(name)).since(earlier) for name, earlier in before.items()}
    return LoadResult(asked, took_s, cpu_s / took_s, counted[model], [(step, counted[step]) for step in steps])
