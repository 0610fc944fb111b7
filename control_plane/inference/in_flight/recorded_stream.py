"""Records a streamed answer when it ends; `inference/inference` wraps each stream in a `RecordedStream`."""

from __future__ import annotations

from control_plane.core.infer_call import Outcome
from control_plane.inference.in_flight.running_request import RunningRequest
from control_plane.protocols.http1 import with_line
from control_plane.triton.ports import HttpStream


class RecordedStream:
    """Recording wrapper of `triton/ports.HttpStream`: a stream that is closed before its end counts as
    ABANDONED."""

    def __init__(self, stream: HttpStream, running: RunningRequest, head: bytes, *, is_whole: bool = False) -> None:
        """`is_whole`: the caller gets its pieces as one, and an error in their place."""
        self.status = stream.status
        self.head = head
        self._stream = stream
        self._is_whole = is_whole
        # The outcome holds only if the stream reaches its end; until then, closing it means that the caller
        # has left.
        self._outcome_at_end, running.outcome = running.outcome, Outcome.ABANDONED
        self._running: RunningRequest | None = running
        running.detach()

    async def receive(self) -> bytes | None:
        try:
            piece = await self._stream.receive()
        except BaseException as exc:
            if self._running is not None:
                (self._running.fail if self._is_whole else self._running.mark_broken_off)(exc)
            raise
        if piece is None and self._running is not None:
            self._running.outcome = self._outcome_at_end
        return piece

    def with_header(self, line: bytes) -> RecordedStream:
        """Add a line to its head, which has not been sent."""
        self.head = with_line(self.head, line)
        return self

    def close(self) -> None:
        self._stream.close()
        if self._running is not None:
            self._running.end()
            self._running = None
