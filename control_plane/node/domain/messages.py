"""Messages between a gateway and a node: length-prefixed JSON frames, and their codec.

Both may be of different versions of Tidegate, so each first says which versions of the wire it speaks; the newest
that both speak is used, and without one the connection is refused with a reason. Within a version nothing is
optional: an unknown kind, field or type is an error that ends the connection. A change of any message is a new
version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, TypeVar, get_args

import orjson
from pydantic import AfterValidator, Base64Bytes, ConfigDict, Field, TypeAdapter, ValidationError

from control_plane.core.held_memory import HeldMemory
from control_plane.core.model import ModelState
from control_plane.metering.domain.compute_units import ModelCost
from control_plane.models.domain.description import DescribedModel
from control_plane.node.domain.fence import Term
from control_plane.node.domain.plausible import plausible_cost, plausible_memory, plausible_models, plausible_term

VERSIONS = (5, 5)
"""Oldest and newest version of the wire that this program speaks."""
LENGTH_BYTES = 4  # before each frame, big-endian
MAX_FIRST_BYTES = 4096
"""Largest frame before both sides are authenticated."""
MAX_BYTES = 2**24
MODELS_AT_ONCE = 200
"""Models in one message; both sides read other messages between two."""

KnownContents = tuple[Base64Bytes, bool, bool, bool]
"""The fields of a `Fingerprint`."""
Number = Annotated[int, Field(ge=0, le=2**53)]
"""A number as the other side chose it. JSON has none beyond that which all programs read as the same."""
ShownTerm = Annotated[Term, AfterValidator(plausible_term)]
Seconds = Annotated[float, Field(ge=0, le=2**53)]
Line = tuple[str, str, ModelState, str]
"""The fields of a `ModelVersion`."""


class WrongMessage(Exception):
    """A frame is not a message of the version in use."""


# Before both sides are authenticated


@dataclass(frozen=True, slots=True)
class Hello:
    """A gateway's first message, which all versions read."""

    oldest: Number
    newest: Number
    nonce: str
    fleet: str
    gateway: str
    """Name of the gateway's process, for the log."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The node's answer: the version in use from here on."""

    version: Number
    nonce: str
    wants_secret: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The node's last message, to a gateway that it does not serve."""

    reason: str


@dataclass(frozen=True, slots=True)
class GatewayProof:
    """The gateway's proof that it has the secret; empty without one."""

    proof: Base64Bytes


@dataclass(frozen=True, slots=True)
class Welcome:
    """The node's proof. After it come the node's state, descriptions, fingerprints, and `Complete`."""

    proof: Base64Bytes
    incarnation: str
    """Name of this run of the node: nothing that was learned of another run holds."""


# From gateways


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a `Pong`, twice a second."""

    sent_s: float
    """When it was sent, on the gateway's clock; means nothing to the node."""
    awaited: dict[str, Seconds]
    """Age in seconds of each model's oldest request, of those that have waited for long."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The gateway and its workers apply the `Contents` of this number, and all before it."""

    number: Number


@dataclass(frozen=True, slots=True)
class LookIndex:
    """Asks for Triton's index; answered by `Index`. With a term, older ones are refused from now on."""

    number: Number
    known: Number
    """Edition of the index that was told last over this connection; 0 without one."""
    term: ShownTerm | None


@dataclass(frozen=True, slots=True)
class LookMemory:
    """Asks for the memory that Triton and all it started hold; answered by `Memory`."""

    number: Number


@dataclass(frozen=True, slots=True)
class Prepare:
    """Asks to prepare a load of a model, under this number until `Leave`; answered by `Done`."""

    number: Number
    name: str


@dataclass(frozen=True, slots=True)
class Load:
    """Asks to carry out the load that was prepared as `prepared`; answered by `Done` once its contents are
    known."""

    number: Number
    prepared: Number
    term: ShownTerm


@dataclass(frozen=True, slots=True)
class Unload:
    """Asks to unload a model; answered by `Done`."""

    number: Number
    name: str
    unload_dependents: bool
    term: ShownTerm


@dataclass(frozen=True, slots=True)
class Replace:
    """Announcement that models with a dead stub are about to be unloaded and loaded, until `Leave`; answered by
    `Done`."""

    number: Number
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """Asks to fetch a model's files and to keep them until `Leave`; answered by `Done`, after a `Described` of what was not
    known of them before."""

    number: Number
    name: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Ends what was begun under this number: well, or without what it was for."""

    number: Number
    is_well: bool


@dataclass(frozen=True, slots=True)
class Suspect:
    """A model seems to hang: this gateway has had no answer for so long."""

    name: str
    silent_for_s: Seconds


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The gateway ends, and relies on nothing that the node has said."""


# From nodes


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a `Ping`. It comes after all `Contents` that were sent before it."""

    sent_s: float


@dataclass(frozen=True, slots=True)
class TritonState:
    """Triton is up, in this life of it; or down for a reason (then `life` is empty)."""

    life: str
    reason: str


@dataclass(frozen=True, slots=True)
class Described:
    """Models of the node's folders and stores, and their costs; those that are not named stay as they are."""

    models: Annotated[dict[str, DescribedModel | None], AfterValidator(plausible_models)]
    """None: there is no such model any more."""
    costs: dict[str, Annotated[ModelCost, AfterValidator(plausible_cost)] | None]


@dataclass(frozen=True, slots=True)
class Contents:
    """Fingerprints of what is loaded that have changed, to be acknowledged."""

    number: Number
    changes: dict[str, KnownContents | None]
    """None: the contents are uncertain."""
    gone: tuple[str, ...] = ()
    """Models that are not loaded any more."""


@dataclass(frozen=True, slots=True)
class Complete:
    """All that the node knows has been said: from here on it says what changes."""


@dataclass(frozen=True, slots=True)
class StubDied:
    """A stub of a loaded model has died."""

    name: str
    how: str


@dataclass(frozen=True, slots=True)
class Index:
    """The answer to `LookIndex`, and, with number 0, what a change of models has led to."""

    number: Number
    edition: Number
    lines: list[Line] | None
    """None in an answer: this edition is the one that the gateway has."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The answer to `LookMemory`; None where it is not known."""

    number: Number
    held: Annotated[HeldMemory, AfterValidator(plausible_memory)] | None


@dataclass(frozen=True, slots=True)
class Done:
    """Success of the request with this number."""

    number: Number


@dataclass(frozen=True, slots=True)
class Failed:
    """Failure of the request with this number."""

    number: Number
    code: str
    """An `ErrorCode`."""
    message: str
    details: dict[str, float] = field(default_factory=dict)
    """The error's other fields."""


First = Hello | Challenge | Refused | GatewayProof | Welcome
FromGateway = Ping | Acknowledge | LookIndex | LookMemory | Prepare | Load | Unload | Replace | Hold | Leave | Suspect | Goodbye
FromNode = Pong | TritonState | Described | Contents | Complete | StubDied | Index | Memory | Done | Failed
Message = First | FromGateway | FromNode

_STRICT = ConfigDict(extra="forbid")
_KINDS = (*get_args(First), *get_args(FromGateway), *get_args(FromNode))
for _kind in _KINDS:
    _kind.__pydantic_config__ = _STRICT  # unknown fields are errors
_KIND_OF: dict[str, type] = {kind.__name__: kind for kind in _KINDS}


@cache
def _adapter_of(kind: str) -> TypeAdapter[Any]:
    """Made with the first message of a kind: a gateway without nodes sends none."""
    return TypeAdapter(_KIND_OF[kind])


def encode(message: Message) -> bytes:
    """Encode a message as the body of a frame."""
    kind = type(message).__name__
    return orjson.dumps([kind, _adapter_of(kind).dump_python(message, mode="json")])


def decode(body: bytes) -> Message:
    """Decode the message in a frame. Raises WrongMessage."""
    try:
        kind, fields = orjson.loads(body)
        message: Message = _adapter_of(kind).validate_python(fields)
    except (ValueError, TypeError, KeyError, ValidationError) as exc:
        raise WrongMessage(f"not a message of this version: {body[:60]!r}") from exc
    return message


FirstT = TypeVar("FirstT", Hello, Challenge, GatewayProof, Welcome)


def expect(body: bytes | None, kind: type[FirstT]) -> FirstT:
    """Decode a message that must be of this kind. Raises WrongMessage: it is not; None stands for the end of the
    connection."""
    if body is None:
        raise WrongMessage("it has closed the connection")
    message = decode(body)
    if not isinstance(message, kind):
        raise WrongMessage(f"{type(message).__name__} where {kind.__name__} should be")
    return message


def common_version(oldest: int, newest: int, *, ours: tuple[int, int] = VERSIONS) -> int | None:
    """Return the newest version that both sides speak; None if there is none."""
    found = min(newest, ours[1])
    return found if found >= max(oldest, ours[0]) else None
