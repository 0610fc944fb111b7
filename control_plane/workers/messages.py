"""Messages between the parent process and its workers; `workers/codec` frames them.

They run between processes of one version on one machine, over a socket pair that nobody else holds, so the
protocol has no version and is not negotiated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Base64Bytes

from control_plane.core.endpoints import ONLY, Endpoints
from control_plane.fleet.domain.leadership.report import LoadReport
from control_plane.fleet.domain.snapshot import ModelSnapshot, ReplicaSnapshot, ServerSnapshot
from control_plane.inference.domain.observation import Observation
from control_plane.inference.domain.queries_of_death import Finding, Record
from control_plane.telemetry.request_counts import RequestCounts
from control_plane.triton.compute_time import OpenCharge


@dataclass(frozen=True, slots=True)
class Configure:
    """The first message: the worker's number and its settings, in which port 0 is replaced by the port
    chosen."""

    worker: int
    settings: dict[str, Any]
    """The settings as `settings.to_plain` writes them."""
    http_fd: int
    """Descriptor of the worker's own TCP socket, which it has inherited bound, and does not listen yet."""
    grpc_fd: int
    http_socket_fd: int | None
    """Descriptor of a listening Unix socket that the worker has inherited; None: no Unix socket is set."""
    grpc_socket_fd: int | None


@dataclass(frozen=True, slots=True)
class UpstreamUp:
    """A Triton answers at these endpoints."""

    endpoints: Endpoints
    server: str = ONLY


@dataclass(frozen=True, slots=True)
class UpstreamDown:
    """A Triton is down; requests to it are refused with `reason`."""

    reason: str
    server: str = ONLY


@dataclass(frozen=True, slots=True)
class UnderRepair:
    """Models of the only Triton that are being loaded anew, each with when it is expected to be ready, on the
    machine's monotonic clock."""

    ready_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class UpstreamSilence:
    """A Triton that is up says nothing, or answers again."""

    is_silent: bool
    server: str = ONLY


@dataclass(frozen=True, slots=True)
class ServersChanged:
    """The servers that have joined or changed, by name; None: it has left.

    Sent before any message about them.
    """

    servers: dict[str, ServerSnapshot | None]


@dataclass(frozen=True, slots=True)
class ReplicasChanged:
    """All replicas on one server, by model."""

    server: str
    replicas: dict[str, ReplicaSnapshot]


@dataclass(frozen=True, slots=True)
class ModelsChanged:
    """The models that are new or have changed, by name; None: it is gone."""

    models: dict[str, ModelSnapshot | None]


@dataclass(frozen=True, slots=True)
class WorkedOnElsewhere:
    """The oldest requests that other workers have at replicas, of those that are there for long."""

    requests: tuple[tuple[str, str, float], ...]


@dataclass(frozen=True, slots=True)
class FindingShared:
    """Finding of a worker about a request under which a process died; the parent forwards it to the other
    workers. Times are on the machine's monotonic clock."""

    model: str
    digest: Base64Bytes
    record: Record | None
    is_stub: bool = False

    @classmethod
    def of(cls, finding: Finding) -> FindingShared:
        return cls(*finding.digest, finding.record, finding.is_stub)

    @property
    def finding(self) -> Finding:
        return Finding((self.model, self.digest), self.record, self.is_stub)


@dataclass(frozen=True, slots=True)
class TurnGiven:
    """The answer to the `AskTurn` of this number, once the suspect may be sent."""

    number: int


@dataclass(frozen=True, slots=True)
class Listen:
    """Everything is ready: open the frontends' ports."""


@dataclass(frozen=True, slots=True)
class ReloadTls:
    """Read the TLS certificate's files again now."""


@dataclass(frozen=True, slots=True)
class TokensDrawn:
    """The answer to the `DrawTokens` of this number."""

    number: int
    granted: int
    debt_s: float


@dataclass(frozen=True, slots=True)
class CollectCharges:
    """Triton's counts have just been read: send the `Charges` that they may belong to, even if there are
    none."""

    number: int


@dataclass(frozen=True, slots=True)
class AnnounceDrain:
    """The gateway will stop: readiness says no from now on, and everything is still served."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Drain: accept no more requests, let those in flight finish, send the last counts and exit.

    A second one with less time cuts the first short.
    """

    timeout_s: float


@dataclass(frozen=True, slots=True)
class FingerprintsChanged:
    """Fingerprints of loaded models that have changed: the fields of `Fingerprint`; None: the contents are
    uncertain."""

    number: int
    changes: dict[str, tuple[Base64Bytes, bool, bool] | None]


@dataclass(frozen=True, slots=True)
class RelyUntil:
    """All fingerprints are uncertain from that time on, on the machine's clock that runs on while it sleeps; None
    for no end. A later message says otherwise."""

    until_s: float | None


@dataclass(frozen=True, slots=True)
class IndexRead:
    """The answer to the `ReadIndex` of this number: the fields of each `ModelVersion`; None: it cannot be read, for
    `reason`."""

    number: int
    lines: list[tuple[str, str, str, str]] | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of the `LoadModel` or `UnloadModel` of this number; `error_code` is empty for success."""

    number: int
    error_code: str = ""
    message: str = ""
    upstream_code: int = 0


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
class RolloutGivenUp:
    """The rollout of this id is rolled back: its route's requests go to the present model, whatever the store says."""

    rollout: str


@dataclass(frozen=True, slots=True)
class LoadReported:
    """A worker's load report in a fleet; the parent forwards it to the other workers without its wanted
    models."""

    report: LoadReport


@dataclass(frozen=True, slots=True)
class Suspect:
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


ToWorker = (
    Configure
    | UpstreamUp
    | UpstreamDown
    | UnderRepair
    | UpstreamSilence
    | ServersChanged
    | ReplicasChanged
    | ModelsChanged
    | LoadReported
    | WorkedOnElsewhere
    | FindingShared
    | TurnGiven
    | Listen
    | ReloadTls
    | CollectCharges
    | TokensDrawn
    | AnnounceDrain
    | Drain
    | Changed
    | FingerprintsChanged
    | RelyUntil
    | IndexRead
    | RolloutGivenUp
)
FromWorker = (
    Listening
    | Alive
    | Drained
    | StartFailed
    | CountsReported
    | Charges
    | ArmsObserved
    | DrawTokens
    | LoadReported
    | FindingShared
    | AskTurn
    | EndTurn
    | Suspect
    | LoadModel
    | UnloadModel
    | ReadIndex
    | FingerprintsAcknowledged
)
Message = ToWorker | FromWorker
