"""What the gateway and its Tritons count of the requests that `perf.hedging` sends."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from typing import Any

from perf.servers.processes import cpu_s
from perf.servers.serving import Tidegate

_READY_S = 60.0
_HEDGES = 'tidegate_fleet_hedges_total{{result="{}"}}'


class Counters:
    """Counters of one model on a started tidegate."""

    def __init__(self, started: Tidegate, model: str) -> None:
        self._started = started
        self._model = model

    def wait_for_replicas(self, count: int) -> None:
        """Raises RuntimeError: the model is not ready on so many servers."""
        give_up_s = time.monotonic() + _READY_S
        while sum(self._samples('tidegate_fleet_replicas{server="[^"]+",state="READY"}')) < count:
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"{self._model} is not ready on {count} servers after {_READY_S:g} s")
            time.sleep(0.2)

    def read(self) -> dict[str, float]:
        """All counts, by their names in a `report.Run`. Raises LookupError: the metrics page has one of them no more."""
        stats = self._stats()
        return {
            "executions": stats["execution_count"],
            "cpu_ms": 1e3 * cpu_s(self._started.pid),
            "compute_ms": stats["inference_stats"]["compute_infer"]["ns"] / 1e6,
            "hedged": self._sum(_HEDGES.format("(?:won|lost|failed)")),
            "won": self._sum(_HEDGES.format("won")),
            "no_idle_server": self._sum(_HEDGES.format("no_idle_server")),
            "over_budget": self._sum('tidegate_retries_total{kind="hedge",result="refused"}'),
        }

    def _stats(self) -> Any:
        with urllib.request.urlopen(f"http://{self._started.addresses['http']}/v2/models/{self._model}/stats", timeout=10) as answer:
            return json.load(answer)["model_stats"][0]

    def _sum(self, sample: str) -> float:
        found = self._samples(sample)
        if not found:
            raise LookupError(f"{self._started.metrics} has no {sample}")
        return sum(found)

    def _samples(self, sample: str) -> list[float]:
        """A metric's samples; the name and labels are a pattern but for their braces."""
        pattern = sample.replace("{", r"\{").replace("}", r"\}")
        with urllib.request.urlopen(self._started.metrics, timeout=10) as answer:
            return [float(value) for value in re.findall(rf"^{pattern} (\S+)$", answer.read().decode(), re.MULTILINE)]
