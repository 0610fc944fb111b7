"""The records about a fleet's models that outlive processes and are shared by all of them
(`fleet/ports.FleetMemory`).
"""

from __future__ import annotations

from dataclasses import dataclass

EVERYWHERE = 10**6
"""Value of `min_replicas` that is more than a fleet has servers, so that each that suits the model gets one, also when it joins
later."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Record of what the leader has measured of a model: sizes and times, failed loads, and how it answered
    the last administrator's request."""

    file_bytes: int
    """Size of the model's files when it was measured: other files with another size are another model. 0 if
    not known."""
    resident_bytes: int | None = None
    """None if the model's owner declares it, or if the model has never been loaded."""
    load_s: float | None = None
    """Duration of a load from the warm tier."""
    service_s: float | None = None
    """Mean service time of one request."""
    failures: int = 0
    """Number of failed loads in a row."""
    quarantined_until_s: float = 0.0
    """Seconds since 1970, since processes on several machines share it."""
    why: str = ""
    """Why the last load failed."""
    is_on_trial: bool = False
    """The model failed to load, and these files have never been loaded: no other model is evicted to try them
    again."""
    answered: str = ""
    """The last `DesiredState.asked` that has been carried out or refused."""
    refusal: str = ""
    """Why the request `answered` was refused; empty if it was carried out."""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """Desired state of a model, as administrators set it while the fleet runs."""

    min_replicas: int | None = None
    """None if the model's folder decides."""
    is_suspended: bool = False
    """An administrator has suspended the model: no request loads it."""
    asked: str = ""
    """Unique identifier of a request to load the model anew; whoever made it waits until `Measured.answered`
    equals it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the fleet with what is desired of a model."""

    ready: int
    """Servers that serve it now."""
    held: int
    """Servers on which it is in any state, also on its way out."""
    missing: int
    """Further servers that suit it."""
    is_loading: bool = False
    failure: str = ""
    """Why it is not tried at present; empty where it is."""
