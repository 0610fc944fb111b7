"""What the parent process and its workers say to each other: JSON frames, each with its length before it.

Between processes of one version on one machine, over a socket that only they hold; so nothing here is negotiated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

import orjson
from pydantic import Base64Bytes, TypeAdapter

from control_plane.core.endpoints import ONLY, Endpoints
from control_plane.core.model import ModelState
from control_plane.fleet.domain.report import FleetReport
from control_plane.models.domain.description import ModelSpec, Tier
from control_plane.telemetry.request_counts import RequestCounts
from control_plane.triton.compute_time import OpenCharge

LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Begin:
    """First of all: who the worker is and how it is set; its settings hold the ports that were chosen."""

    worker: int
    settings: dict[str, Any]
    """As `settings.to_plain` gives them."""
    http_socket_fd: int | None
    """A Unix socket that listens already and that the worker has inherited."""
    grpc_socket_fd: int | None


@dataclass(frozen=True, slots=True)
class UpstreamUp:
    endpoints: Endpoints
    server: str = ONLY


@dataclass(frozen=True, slots=True)
class UpstreamDown:
    reason: str
    server: str = ONLY


@dataclass(frozen=True, slots=True)
class SeenServer:
    """One of a fleet's, as far as its worker needs it to choose."""

    budget_bytes: int
    pool: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    is_leaving: bool = False
    parallel: int = 1
    serves_while_loading: bool = True


@dataclass(frozen=True, slots=True)
class ServersSeen:
    """The servers that have joined or changed; None: it has left. Told before anything else of them."""

    servers: dict[str, SeenServer | None]


@dataclass(frozen=True, slots=True)
class SeenCopy:
    life: int
    """Another number is another copy, even if it looks the same."""
    state: ModelState
    bytes: int
    since_s: float
    """By the machine's monotonic clock, which processes have in common."""
    ready_s: float | None
    """None: it does not load."""
    is_step: bool = False


@dataclass(frozen=True, slots=True)
class CopiesSeen:
    """All that a server has."""

    server: str
    copies: dict[str, SeenCopy]


@dataclass(frozen=True, slots=True)
class SeenModel:
    """What the parent goes by, whatever it is made of."""

    spec: ModelSpec
    tier: Tier
    resident_bytes: int
    load_s: float
    service_s: float
    """What a worker starts from; then it knows better."""
    has_sequences: bool = False
    is_withdrawn: bool = False
    failures: int = 0
    quarantined_until_s: float = 0.0
    """Since 1970."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class ModelsSeen:
    """The models that are new or have changed; None: it is gone."""

    models: dict[str, SeenModel | None]


@dataclass(frozen=True, slots=True)
class Listen:
    """All is ready: open the doors."""


@dataclass(frozen=True, slots=True)
class ReloadTls:
    """Look at the certificate's files now."""


@dataclass(frozen=True, slots=True)
class TokensDrawn:
    number: int
    granted: int
    debt_s: float


@dataclass(frozen=True, slots=True)
class TellCharges:
    """Triton's counts have just been read: tell whose they may be, also if there are none."""

    number: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Accept no more, let requests in flight finish, tell the last counts and end."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class FingerprintsChanged:
    """What is loaded, where it is certain, with the fields of its `Fingerprint`; None: nothing is certain."""

    number: int
    changes: dict[str, tuple[Base64Bytes, bool, bool] | None]


@dataclass(frozen=True, slots=True)
class Changed:
    """What came of a load or unload; `error_code` is empty for success."""

    number: int
    error_code: str = ""
    message: str = ""
    upstream_code: int = 0


@dataclass(frozen=True, slots=True)
class Listening:
    """The doors are open."""


@dataclass(frozen=True, slots=True)
class CannotBegin:
    """The worker ends since it cannot work as it is set."""

    reason: str


@dataclass(frozen=True, slots=True)
class FingerprintsTaken:
    """The worker goes by the changes of that number, and by all before them."""

    number: int


@dataclass(frozen=True, slots=True)
class Counted:
    counts: RequestCounts


@dataclass(frozen=True, slots=True)
class Charges:
    """Requests that have ended since the last of these, for the parent to charge what Triton computed of them."""

    open: list[OpenCharge]
    number: int = 0
    """Of the last `TellCharges`."""


@dataclass(frozen=True, slots=True)
class DrawTokens:
    """A worker's request for tokens of a tenant's bucket, which all workers draw from; fields as
    `admission/domain/rate_limit.draw` has them."""

    number: int
    tenant: str
    requests_per_s: float
    burst: float
    want: int
    spent: int


@dataclass(frozen=True, slots=True)
class Reported:
    """In a fleet, by a worker; and told to the others, without what is wanted."""

    report: FleetReport


@dataclass(frozen=True, slots=True)
class LoadModel:
    number: int
    name: str
    config: str | None = None
    files: dict[str, Base64Bytes] | None = None
    """None with `config` None is a load without an override."""


@dataclass(frozen=True, slots=True)
class UnloadModel:
    number: int
    name: str
    unload_dependents: bool


ToWorker = (
    Begin
    | UpstreamUp
    | UpstreamDown
    | ServersSeen
    | CopiesSeen
    | ModelsSeen
    | Reported
    | Listen
    | ReloadTls
    | TellCharges
    | TokensDrawn
    | Drain
    | Changed
    | FingerprintsChanged
)
FromWorker = Listening | CannotBegin | Counted | Charges | DrawTokens | Reported | LoadModel | UnloadModel | FingerprintsTaken
Message = ToWorker | FromWorker

_ADAPTERS: dict[str, TypeAdapter[Any]] = {kind.__name__: TypeAdapter(kind) for kind in (*get_args(ToWorker), *get_args(FromWorker))}


def encode(message: Message) -> bytes:
    """One frame."""
    kind = type(message).__name__
    body = orjson.dumps([kind, _ADAPTERS[kind].dump_python(message, mode="json")])
    return len(body).to_bytes(LENGTH_BYTES) + body


def decode(body: bytes) -> Message:
    """The message of a frame whose length has been taken off."""
    kind, fields = orjson.loads(body)
    message: Message = _ADAPTERS[kind].validate_python(fields)
    return message
