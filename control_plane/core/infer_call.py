"""An inference call and how it ends, independent of the frontend that received it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from control_plane.core.tensor import Tensor


class Frontend(StrEnum):
    """Protocol over which a request arrived, and over which it is sent on to Triton. Label `frontend` of the
    metrics.
    """

    HTTP = "http"
    GRPC = "grpc"
    GRPC_STREAM = "grpc_stream"
    """A ModelStreamInfer call, counted once, however many requests it carries."""

    __hash__ = str.__hash__  # Enum's own is written in Python, and every request is counted by this


class Outcome(StrEnum):
    """Outcome of a request; label `outcome` of the metrics."""

    ANSWERED = "answered"
    """Triton answered with success."""
    UPSTREAM_ERROR = "upstream_error"
    """Triton answered with an error, which was passed through."""
    MODEL_NOT_FOUND = "model_not_found"
    """Triton has no such model or version."""
    REFUSED = "refused"
    """The gateway refused the request, as invalid, not allowed or beyond a limit; Triton never saw it."""
    UNAVAILABLE = "unavailable"
    """No Triton could be reached."""
    DEADLINE_EXCEEDED = "deadline_exceeded"
    ABANDONED = "abandoned"
    """The caller left before the response was ready."""
    FAILED = "failed"
    """The gateway itself failed: a defect, which is logged."""

    __hash__ = str.__hash__  # for speed, see Frontend


class SendFailure(StrEnum):
    """Why a request that was sent to a server got no response from it."""

    NOT_SENT = "unsent"
    """Nothing of the request was sent, so it is safe to send it to another server."""
    CONNECTION_LOST = "broken_off"
    """The connection was lost before the response; the request may have been computed."""
    TIMED_OUT = "silent"
    """The deadline passed without a response."""


class CacheStatus(StrEnum):
    """Part of the response cache in a request's answer; the response header `tidegate-cache` carries it."""

    HIT = "hit"
    """The response was in the cache."""
    MISS = "miss"
    """The response was computed, and cached if that is worth it."""
    JOINED = "joined"
    """The same request was already being computed, and this one got its response (singleflight)."""
    BYPASS = "bypass"
    """The cache was not used for this request, though the model's responses are cached."""

    __hash__ = str.__hash__  # for speed, see Frontend


@dataclass(slots=True)
class InferCall:
    """A validated inference request; its payload stays with the frontend, which sends it on unchanged.

    Never modified, but not a frozen dataclass: making one would cost each request a microsecond more.
    """

    model_name: str
    model_version: str
    """Empty: the version that the model's policy chooses."""
    request_id: str
    inputs: tuple[Tensor, ...]
    sequence_id: str = ""
    """Sequence (correlation) id as text; empty for a request outside sequences. A tenant's is its own, as it goes to Triton
    (`protocols/kserve/sequence_ids`)."""
    uses_shared_memory: bool = False
    """Whether an input or an output lies in shared memory that a client registered."""
    text_bytes: int = 0
    """Bytes of all strings in the inputs, without framing; if they cannot be added up cheaply, the request's
    size."""
    elements: int = 0
    """Numbers and strings in all inputs."""
    starts_sequence: bool = False
    ends_sequence: bool = False
    classified: tuple[str, ...] = ()
    """Names of the outputs whose classes are asked for in place of their values."""
    sequence_is_text: bool = False
    """Whether the sequence id is a string; else it is a number."""
    concerns_others: bool = False
    """Whether Triton would set it against others' requests: by the id of its sequence, or by its priority."""
    has_priority: bool = False
    """Whether it names its priority in Triton's queue, which a tenant's request may not."""
    is_open_ended: bool = False
    """Whether it takes as long as its caller lets it generate, which says nothing of what others take."""
