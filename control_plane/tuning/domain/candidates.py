"""What a tuner changes about a model's serving, and what it measures: values for the policy, the service and adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

KnobValue = int | str


class Knob(Enum):
    """What can be changed, in the order in which it is tried; the value is what people read."""

    INSTANCES = "instances"
    THREADS = "threads"
    """Of one instance: the parameter `intra_op_thread_count`; 0 leaves the choice to the runtime."""
    LANES = "lanes"
    """Batches that one instance runs at a time: the parameter `lanes`; 0 leaves the choice to the backend."""
    QUEUE_DELAY = "queue delay"
    """`max_queue_delay_microseconds`."""
    MODEL_CPUS = "model CPUs"
    """CPUs of the model's instances alone (Triton's host policy `cpu`), a range such as `2-7`."""
    TRITON_CPUS = "Triton CPUs"
    """CPUs of all of Triton, instances included, a range as well."""


_UNITS = {Knob.QUEUE_DELAY: " us"}

SERVE_FLAGS: Mapping[Knob, str] = {Knob.MODEL_CPUS: "--model-cpus", Knob.TRITON_CPUS: "--triton-cpus"}
"""What is no matter of the model's configuration, and the flag of `tidegate serve` that sets it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to serve a model, as what differs from the way it is served now; nothing differs: that way itself."""

    changes: tuple[tuple[Knob, KnobValue], ...] = ()
    """In the order of `Knob`."""

    def changed(self, knob: Knob, value: KnobValue | None) -> Candidate:
        """With this knob at `value`; None leaves it as it is now."""
        values = {each: old for each, old in self.changes if each is not knob}
        if value is not None:
            values[knob] = value
        return Candidate(tuple((each, values[each]) for each in Knob if each in values))

    @property
    def label(self) -> str:
        return ", ".join(f"{knob.value} {value}{_UNITS.get(knob, '')}" for knob, value in self.changes) or "default"

    @property
    def serve_flags(self) -> tuple[str, ...]:
        """What `tidegate serve` needs for it, besides the model's configuration."""
        return tuple(part for knob, value in self.changes if knob in SERVE_FLAGS for part in (SERVE_FLAGS[knob], str(value)))


DEFAULT = Candidate()


@dataclass(frozen=True, slots=True)
class Level:
    """One measurement with so many requests in flight at a time."""

    concurrency: int
    throughput: float
    """Requests per second."""
    p50_ms: float
    p99_ms: float


Round = tuple[Level, ...]
"""One measurement at each concurrency, one after the other; empty: the candidate could not be served."""
