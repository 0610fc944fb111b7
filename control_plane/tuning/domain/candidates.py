"""Values of tuning: the knobs of a model's configuration, candidates that change them, and measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

KnobValue = int | str


class Knob(Enum):
    """A setting that the tuner can change; members are in the order in which they are tried, values are for
    people.
    """

    INSTANCES = "instances"
    THREADS = "threads"
    """Threads of one instance (parameter `intra_op_thread_count`); 0 leaves the choice to the runtime."""
    LANES = "lanes"
    """Batches that one instance runs at a time (parameter `lanes`); 0 leaves the choice to the backend."""
    QUEUE_DELAY = "queue delay"
    """`max_queue_delay_microseconds`."""
    MODEL_CPUS = "model CPUs"
    """CPUs of the model's instances alone (Triton's host policy `cpu`), a range such as `2-7`."""
    TRITON_CPUS = "Triton CPUs"
    """CPUs of all of Triton including the instances, as a range."""


_UNITS = {Knob.QUEUE_DELAY: " us"}

SERVE_FLAGS: Mapping[Knob, str] = {Knob.MODEL_CPUS: "--model-cpus", Knob.TRITON_CPUS: "--triton-cpus"}
"""Knobs that are not in the model's configuration -> the flag of `tidegate serve` that sets them."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to serve a model, as its differences from the present configuration; without any it is the
    default.
    """

    changes: tuple[tuple[Knob, KnobValue], ...] = ()
    """Changed knobs with their values, in the order of `Knob`."""

    def changed(self, knob: Knob, value: KnobValue | None) -> Candidate:
        """Return the candidate with this knob at `value`; None resets it to the present configuration."""
        values = {each: old for each, old in self.changes if each is not knob}
        if value is not None:
            values[knob] = value
        return Candidate(tuple((each, values[each]) for each in Knob if each in values))

    @property
    def label(self) -> str:
        """The changes as people read them, or `default`."""
        return ", ".join(f"{knob.value} {value}{_UNITS.get(knob, '')}" for knob, value in self.changes) or "default"

    @property
    def serve_flags(self) -> tuple[str, ...]:
        """Flags that `tidegate serve` needs for it, in addition to the model's configuration."""
        return tuple(part for knob, value in self.changes if knob in SERVE_FLAGS for part in (SERVE_FLAGS[knob], str(value)))


DEFAULT = Candidate()


@dataclass(frozen=True, slots=True)
class Level:
    """One measurement at one concurrency (requests in flight)."""

    concurrency: int
    throughput: float
    """Requests per second."""
    p50_ms: float
    p99_ms: float


Round = tuple[Level, ...]
"""Measurements at each concurrency, made one after the other; empty if the candidate could not be served."""
