"""Divides the time of a request by what Triton has counted of it: network, gateway, and the queue and computation of each model
that takes part. Pure.

Means, not percentiles, so that the parts add up to the whole. Source: Triton's statistics extension
(docs/protocol/extension_statistics.md in triton-inference-server/server).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from control_plane.core.errors import InvalidRequest

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
class Stage:
    """One part of a request's time."""

    name: str
    ms: float


def stages(
    *, total_ms: float, network_ms: float, model: Counted, steps: Sequence[tuple[str, Counted]], protocol: str = "HTTP"
) -> list[Stage]:
    """Divide the mean time of a request in the order of its way. `model` and, of an ensemble, its `steps` are what Triton counted
    meanwhile; `network_ms` is what a request by this `protocol` takes that asks for nothing.
    """
    requests = max(model.requests, 1)
    triton_ms = model.success_ns / requests / 1e6
    computing = [
        Stage(f"{name}: {_PHASES[phase]}" if steps else _PHASES[phase], ns / requests / 1e6)
        for name, counted in steps or [("", model)]
        for phase, ns in counted.phases_ns.items()
    ]
    rest_ms = triton_ms - sum(each.ms for each in computing)
    return [
        Stage(f"network and {protocol}", network_ms),
        # Where others ask as well, Triton's mean is of theirs, too, and may be longer than this request.
        Stage("gateway, and its way to Triton", max(0.0, total_ms - network_ms - triton_ms)),
        *computing,
        Stage("Triton's scheduling", max(0.0, rest_ms)),
    ]
