from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from control_plane.core.infer_call import Frontend, Outcome


class Recorded(NamedTuple):
    model_name: str
    frontend: Frontend
    outcome: Outcome
    duration_s: float


@dataclass
class FakeRecorder:
    """`telemetry/ports.RequestRecorder` that keeps what it records."""

    records: list[Recorded] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)
    """Models of the requests that servers have computed."""
    work: list[tuple[str, float, float]] = field(default_factory=list)
    """Model, compute units and seconds of computed answers."""

    def record(self, *, model_name: str, frontend: Frontend, outcome: Outcome, duration_s: float, count: int = 1) -> None:
        self.records += [Recorded(model_name, frontend, outcome, duration_s)] * count

    def record_computed(self, model_name: str) -> None:
        self.computed.append(model_name)

    def record_work(self, model_name: str, units: float, duration_s: float, /) -> None:
        self.work.append((model_name, units, duration_s))

    @property
    def outcomes(self) -> list[Outcome]:
        return [each.outcome for each in self.records]
