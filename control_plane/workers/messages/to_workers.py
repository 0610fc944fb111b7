"""Messages of the parent process to its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Base64Bytes

from control_plane.core.endpoints import ONLY, Endpoints
from control_plane.fleet.domain.snapshot import ModelSnapshot, ReplicaSnapshot, ServerSnapshot


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
    changes: dict[str, tuple[Base64Bytes, bool, bool, bool] | None]


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
class WatchRequests:
    """Somebody reads requests as they end: send `RequestsEnded` from now on; or nobody does any more."""

    is_watched: bool


@dataclass(frozen=True, slots=True)
class CollectFor:
    """Send `TenantsTold` of what happens to these tenants from now on, and of no others."""

    tenants: list[str]


@dataclass(frozen=True, slots=True)
class TenantEvents:
    """Events of a tenant, as CloudEvents in JSON, numbered from `first` on in the feed of this id."""

    tenant: str
    feed: str
    first: int
    events: list[str]
    begins: bool = False
    """Whether the worker's copy of the feed begins with these."""
    more: bool = False
    """Whether there are more before the copy is whole."""


@dataclass(frozen=True, slots=True)
class RolloutGivenUp:
    """The rollout of this id is rolled back: its route's requests go to the present model, whatever the store says."""

    rollout: str
