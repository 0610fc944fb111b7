"""One inference call, whichever door it came through."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from control_plane.core.tensor import Tensor


class Door(StrEnum):
    """The protocol that a request came by, and by which it goes on to Triton."""

    HTTP = "http"
    GRPC = "grpc"
    GRPC_STREAM = "grpc_stream"
    """A ModelStreamInfer call, counted once, however many requests it carries."""

    __hash__ = str.__hash__  # Enum's own is written in Python, and every request is counted by this


class Outcome(StrEnum):
    """How a request ended, as metrics tell it."""

    ANSWERED = "answered"
    """Triton answered with success."""
    UPSTREAM_ERROR = "upstream_error"
    """Triton answered with an error, which was passed through."""
    MODEL_NOT_FOUND = "model_not_found"
    """Triton has no such model or version."""
    REFUSED = "refused"
    """The door found the request invalid; Triton never saw it."""
    UNAVAILABLE = "unavailable"
    """No Triton could be asked."""
    DEADLINE_EXCEEDED = "deadline_exceeded"
    ABANDONED = "abandoned"
    """The caller left before its answer was there."""
    FAILED = "failed"
    """The gateway itself failed: a defect, and logged as one."""

    __hash__ = str.__hash__  # as Door's


class Loss(StrEnum):
    """Why a request that went to a server has no answer of that server's."""

    UNSENT = "unsent"
    """Nothing of it has left: it may be sent elsewhere."""
    BROKEN_OFF = "broken_off"
    """The connection broke before the answer: it may have been computed."""
    SILENT = "silent"
    """Its time was over before there was one."""


class CacheStatus(StrEnum):
    """What the response cache did for a request, as its answer's `tidegate-cache` tells it."""

    HIT = "hit"
    """It was there."""
    MISS = "miss"
    """It was computed, and is there now if it is worth it."""
    JOINED = "joined"
    """It was being computed for another request."""
    BYPASS = "bypass"
    """The cache was not asked, though the model's answers are kept."""

    __hash__ = str.__hash__  # as Door's


@dataclass(slots=True)
class InferCall:
    """A validated inference request; its payload stays with the door, which sends it on unchanged.

    Never changed, but not frozen: that would cost each request a microsecond more.
    """

    model_name: str
    model_version: str
    """Empty: the version that the model's policy chooses."""
    request_id: str
    inputs: tuple[Tensor, ...]
    sequence_id: str = ""
    """As text, for a request that belongs to a sequence."""
    uses_shared_memory: bool = False
    """Whether an input or an output lies in a region of memory that a client registered."""
    text_bytes: int = 0
    """Of all strings in inputs, without framing; of a request too large or too odd to add them up, its own size."""
    elements: int = 0
    """Numbers and strings in all inputs."""
    starts_sequence: bool = False
    ends_sequence: bool = False
