"""Messages of a worker to the parent process."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Base64Bytes

from control_plane.inference.domain.observation import Observation
from control_plane.telemetry.request_counts import RequestCounts
from control_plane.triton.compute_time import OpenCharge


@dataclass(frozen=True, slots=True)
class Listening:
    """The worker's frontends accept requests."""


@dataclass(frozen=True, slots=True)
class Drained:
    """The drain is over: no request is in flight, and all their charges have been sent."""


Sent = tuple[str, str, float]
"""Server, model and time of a request that was sent there, on the machine's monotonic clock."""


@dataclass(frozen=True, slots=True)
class Alive:
    """The worker's event loop runs; sent four times a second."""

    awaited: tuple[Sent, ...] = ()
    """Each model's oldest request, of those that have waited for long."""
    given_up: tuple[Sent, ...] = ()
    """Each replica's oldest request that its caller gave up, and on which the replica may work."""
    streaming: tuple[tuple[str, str], ...] = ()
    """Server and model of the replicas that go on with a streamed response."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The worker exits because it cannot work with its settings."""

    reason: str


@dataclass(frozen=True, slots=True)
class FingerprintsAcknowledged:
    """Acknowledges the `FingerprintsChanged` of this number, and all before it."""

    number: int


@dataclass(frozen=True, slots=True)
class CountsReported:
    """The worker's request counts since it started; sent every second, which also shows that it is alive."""

    counts: RequestCounts
    degraded: tuple[str, ...] = ()
    """Degradations of the worker, a sentence each: it serves, but not all of it works as it should."""


@dataclass(frozen=True, slots=True)
class Charges:
    """Requests that have ended since the last `Charges`, for the parent to charge what Triton computed for
    them."""

    open: list[OpenCharge]
    number: int = 0
    """The number of the last `CollectCharges` that the worker has received."""


@dataclass(frozen=True, slots=True)
class DrawTokens:
    """Asks for tokens from a tenant's token bucket, which all workers share.

    The fields are the arguments of `admission/domain/rate_limit.draw`.
    """

    number: int
    tenant: str
    requests_per_s: float
    burst: float
    want: int
    spent: int


@dataclass(frozen=True, slots=True)
class AskTurn:
    """Asks whether a suspect of the model may be sent; answered by `TurnGiven` when it may."""

    number: int
    model: str


@dataclass(frozen=True, slots=True)
class EndTurn:
    """The suspect of this number is done with, or waits for its turn no longer."""

    number: int
    was_answered: bool


@dataclass(frozen=True, slots=True)
class ArmsObserved:
    """Outcomes of requests that rollouts have assigned, since the last `ArmsObserved`."""

    seen: list[Observation]


@dataclass(frozen=True, slots=True)
class RequestsEnded:
    """Requests that have ended since the last `RequestsEnded`, as CloudEvents in JSON."""

    events: list[str]


@dataclass(frozen=True, slots=True)
class FollowTenants:
    """The tenants whose events are read in this worker: send `TenantEvents` of these, and of no others."""

    tenants: list[str]


@dataclass(frozen=True, slots=True)
class TenantsTold:
    """What has happened to tenants since the last `TenantsTold`: the tenant, what, when (in seconds since 1970), data in JSON."""

    events: list[tuple[str, str, float, str]]


@dataclass(frozen=True, slots=True)
class SilenceSuspected:
    """A model seems to hang on a server: there has been no answer since then, on the machine's monotonic clock."""

    server: str
    model: str
    since_s: float


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Asks the parent to load a model; answered by `Changed`."""

    number: int
    name: str
    config: str | None = None
    files: dict[str, Base64Bytes] | None = None
    """None, with `config` None, means a load without an override."""


@dataclass(frozen=True, slots=True)
class ReadIndex:
    """Asks for the index of a server's Triton, which only its node may read; answered by `IndexRead`."""

    number: int
    server: str


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Asks the parent to unload a model; answered by `Changed`."""

    number: int
    name: str
    unload_dependents: bool
