"""Port of the request path to a shadow: where answered requests are offered to be copied to another model, a route's mirror or
the next model of its rollout.

`rollout/shadow` implements it; `inference/inference` offers, and goes on at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from control_plane.core.infer_call import InferCall
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.objects.domain.route import Route
from control_plane.triton.ports import Upstream

MAX_COPIED_BYTES = 2**20
"""Largest request or answer that is copied: a copy holds memory that no caller's limit counts."""


class RequestCopy(Protocol):
    """Copy of a request for another model, which nobody waits for."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def is_whole(self) -> bool:
        """Whether it asks for all that the original had computed, so that their times can be compared."""

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[Any]:
        """Send it and return Triton's answer, good or bad. Raises UpstreamUnavailable, DeadlineExceeded."""

    def outputs(self, answer: Any) -> Mapping[str, NDArray[Any]] | None:
        """Decode an answer's tensors; None for an error. Raises InvalidRequest: they cannot be read."""


class CopyableRequest(Protocol):
    """Request that can be copied once it is answered."""

    def body_bytes(self) -> int:
        """Size of its body as it is sent."""

    def unit(self, call: InferCall) -> tuple[bytes, ...]: ...

    def copy_for(self, model_name: str, model_version: str) -> RequestCopy:
        """Return a copy for this model, which holds nothing of its caller's connection."""


class Shadow(Protocol):
    """Copier of answered requests to another model."""

    def offer(self, route: Route, request: CopyableRequest, running: AuthorizedRequest, answer: Any) -> None:
        """Take a request that has just been answered, to copy it after its caller has the answer, if that is wanted. Never
        raises, never waits."""
