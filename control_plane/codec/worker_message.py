"""What the parent process and its workers say to each other: JSON frames, each with its length before it.

Between processes of one version on one machine, over a socket that only they hold; so nothing here is negotiated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import Base64Bytes, TypeAdapter

from control_plane.domain.endpoints import TritonEndpoints
from control_plane.domain.request_counts import RequestCounts

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
    endpoints: TritonEndpoints


@dataclass(frozen=True, slots=True)
class UpstreamDown:
    reason: str


@dataclass(frozen=True, slots=True)
class Listen:
    """All is ready: open the doors."""


@dataclass(frozen=True, slots=True)
class ReloadTls:
    """Look at the certificate's files now."""


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


ToWorker = Begin | UpstreamUp | UpstreamDown | Listen | ReloadTls | Drain | Changed | FingerprintsChanged
FromWorker = Listening | CannotBegin | Counted | LoadModel | UnloadModel | FingerprintsTaken
Message = ToWorker | FromWorker

_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(kind)
    for kind in (
        *(Begin, UpstreamUp, UpstreamDown, Listen, ReloadTls, Drain, Changed, FingerprintsChanged),
        *(Listening, CannotBegin, Counted, LoadModel, UnloadModel, FingerprintsTaken),
    )
}


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
