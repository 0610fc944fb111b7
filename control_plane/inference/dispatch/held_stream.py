"""Streamed response under way, as both dispatchers hand it out: they hear how it ends, since a process may die or hang under its
request after the first piece, too.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.inference.retries.faults import Fault, fault_of_error
from control_plane.inference.retries.queries_of_death import StreamCase
from control_plane.inference.retries.server_fault import dead_stub_model_of
from control_plane.triton.ports import ModelStream

_IN_VAIN_S = 1.0
"""Time without a piece after which a caller that leaves has given the model up, and has not just had enough."""


class StreamEnding(Protocol):
    """Port to the dispatcher that began a stream, which is told of its end."""

    async def is_death(self, fault: Fault, came: Exception | bytes) -> bool:
        """Note what came in place of a piece, and return whether a process died while it computed the response."""

    def closed(self, fault: Fault | None) -> None:
        """Note that the stream has been closed: at its end (None), TIMED_OUT where its caller waited in vain for the next piece,
        CANCELLED where he has left all the same, or after what it has failed for."""


class HeldStream:
    """Streamed response (`triton/ports.ModelStream`) whose dispatcher is told how it ends."""

    def __init__(self, stream: ModelStream, case: StreamCase, ending: StreamEnding) -> None:
        self.status = stream.status
        self.head = stream.head
        self._stream = stream
        self._case = case
        self._ending: StreamEnding | None = ending
        self._fault: Fault | None = Fault.CANCELLED
        """As which the dispatcher is told of its end, if it were closed now."""
        self._now_s = asyncio.get_running_loop().time

    @property
    def heard_s(self) -> float:
        """See `triton/ports.ModelStream`."""
        return self._stream.heard_s

    def fail(self, error: UpstreamUnavailable) -> None:
        """See `triton/ports.ModelStream`."""
        self._stream.fail(error)

    async def receive(self) -> bytes | None:
        """Return the next piece, as `triton/ports.HttpStream.receive` says. Raises QueryOfDeath, too."""
        asked_s = self._now_s()
        try:
            piece = await self._stream.receive()
        except (DeadlineExceeded, asyncio.CancelledError):
            # An answer that is sent whole may run out of time, or be given up, while its model goes on.
            if self._now_s() - max(asked_s, self._stream.heard_s) >= _IN_VAIN_S:
                self._fault = Fault.TIMED_OUT
            raise
        except Exception as exc:
            await self._fail(fault_of_error(exc), exc)
            raise
        if piece is None:
            self._fault = None
        elif dead_stub_model_of(piece) is not None:
            await self._fail(Fault.DEAD_STUB, piece)
        return piece

    async def _fail(self, fault: Fault, came: Exception | bytes) -> None:
        self._fault = fault
        if self._ending is not None and await self._ending.is_death(fault, came):
            self._case.died(is_stub=fault is Fault.DEAD_STUB)

    def close(self) -> None:
        self._stream.close()
        ending, self._ending = self._ending, None
        if ending is not None:
            self._case.ended(was_answered=self._fault is None)
            ending.closed(self._fault)
