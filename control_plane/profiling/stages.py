"""Divides the time of requests: by what their client has measured, what the gateway tells of each (`protocols/server_timing`), and
what Triton has counted of all. Pure.

Triton counts sums, so the means of its parts are known, and no percentiles. Means add up to the whole. Source: Triton's
statistics extension (docs/protocol/extension_statistics.md in triton-inference-server/server).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Any

from control_plane.core.errors import InvalidRequest
from control_plane.protocols.server_timing import SERVER, TOTAL, WAIT

_PHASES = {"queue": "queue", "compute_input": "inputs", "compute_infer": "computing", "compute_output": "outputs"}
"""Phases of a model's requests in Triton's statistics, and what they are called here."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What Triton has counted of one model's requests: their number, and nanoseconds by phase."""

    requests: int
    success_ns: int
    phases_ns: Mapping[str, int]

    @classmethod
    def of(cls, statistics: Any) -> Counted:
        """Read an answer of the statistics extension about one model, summed over its versions. Raises InvalidRequest."""
        try:
            counted = [each["inference_stats"] for each in statistics["model_stats"]]
            return cls(
                sum(int(each["success"]["count"]) for each in counted),
                sum(int(each["success"]["ns"]) for each in counted),
                {phase: sum(int(each[phase]["ns"]) for each in counted) for phase in _PHASES},
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise InvalidRequest("the gateway has no statistics of that model, as Triton gives them") from exc

    def since(self, earlier: Counted) -> Counted:
        """Return the difference to counts that were read earlier. Raises InvalidRequest: Triton has begun to count anew."""
        if self.requests < earlier.requests:
            raise InvalidRequest("the model was loaded anew meanwhile, and Triton counts from then on; measure again")
        phases_ns = {phase: ns - earlier.phases_ns[phase] for phase, ns in self.phases_ns.items()}
        return Counted(self.requests - earlier.requests, self.success_ns - earlier.success_ns, phases_ns)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as its client knows it."""

    total_ms: float
    told_ms: Mapping[str, float]
    """Milliseconds of its durations, by their names in the header `server-timing`; empty where the gateway sent none."""

    @property
    def gateway_ms(self) -> float:
        """What the gateway itself has worked for it; 0 where it does not tell."""
        told = self.told_ms
        return told.get(TOTAL, 0.0) - told.get(WAIT, 0.0) - told.get(SERVER, 0.0)


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a request's time."""

    name: str
    ms: float
    """Mean."""
    p50_ms: float | None = None
    """None, as of the 99th percentile: nobody knows it."""
    p99_ms: float | None = None


def measured(name: str, values_ms: Sequence[float]) -> Stage:
    """Return a part that is known of each request; there is at least one. Percentiles are by the nearest rank."""
    ranked = sorted(values_ms)
    p50, p99 = (ranked[ceil(part * len(ranked)) - 1] for part in (0.5, 0.99))
    return Stage(name, fmean(ranked), p50, p99)


def stages(asked: Sequence[Asked], *, model: Counted, steps: Sequence[tuple[str, Counted]], protocol: str = "HTTP") -> list[Stage]:
    """Divide the time of requests by this `protocol` in the order of their way. `model` and, of an ensemble, its `steps` are what
    Triton counted meanwhile. Where others ask as well, Triton's means are of theirs, too, and may be longer than these requests.
    """
    triton_ms = model.success_ns / max(model.requests, 1) / 1e6
    computing = _counted(model, steps, _PHASES)
    scheduling = Stage("Triton's scheduling", _rest(triton_ms, computing))
    if not _are_told(asked):
        return [Stage(f"network, {protocol} and gateway", max(0.0, _mean_ms(asked) - triton_ms)), *computing, scheduling]
    return [*_in_gateway(asked, protocol), Stage("way to Triton", max(0.0, _server_ms(asked) - triton_ms)), *computing, scheduling]


def stages_of_first(asked: Sequence[Asked], *, model: Counted, steps: Sequence[tuple[str, Counted]], protocol: str = "HTTP") -> list[Stage]:
    """Divide the time of requests to their first response as `stages` does. What a decoupled model does after it was handed a
    request Triton does not count, so of Triton only its queue is told apart.
    """
    queues = _counted(model, steps, ["queue"])
    if not _are_told(asked):
        return [Stage(f"network, {protocol}, gateway, and the model", _rest(_mean_ms(asked), queues)), *queues]
    model_ms = _rest(_server_ms(asked), queues)
    return [*_in_gateway(asked, protocol), *queues, Stage("way to Triton, and the model", model_ms)]


def _counted(model: Counted, steps: Sequence[tuple[str, Counted]], phases: Iterable[str]) -> list[Stage]:
    """Means of these phases of the model or, of an ensemble, of its steps."""
    requests = max(model.requests, 1)
    return [
        Stage(f"{name}: {_PHASES[phase]}" if steps else _PHASES[phase], counted.phases_ns[phase] / requests / 1e6)
        for name, counted in steps or [("", model)]
        for phase in phases
    ]


def _in_gateway(asked: Sequence[Asked], protocol: str) -> list[Stage]:
    return [
        measured(f"network and {protocol}", [max(0.0, each.total_ms - each.told_ms[TOTAL]) for each in asked]),
        measured("gateway: waiting", [each.told_ms.get(WAIT, 0.0) for each in asked]),
        measured("gateway: its own work", [max(0.0, each.gateway_ms) for each in asked]),
    ]


def _are_told(asked: Sequence[Asked]) -> bool:
    return all(TOTAL in each.told_ms for each in asked)


def _mean_ms(asked: Sequence[Asked]) -> float:
    return fmean(each.total_ms for each in asked)


def _server_ms(asked: Sequence[Asked]) -> float:
    server = at_server(asked)
    return 0.0 if server is None else server.ms


def _rest(ms: float, parts: Sequence[Stage]) -> float:
    return max(0.0, ms - sum(each.ms for each in parts))


def at_server(asked: Sequence[Asked]) -> Stage | None:
    """Return the time in Triton and on the way there, of those requests that were sent to it; None where there are none."""
    sent = [each.told_ms[SERVER] for each in asked if SERVER in each.told_ms]
    return measured("in Triton, and on the way there", sent) if sent else None
