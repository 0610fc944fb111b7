"""Answers on their way to Triton, sent by a thread of their own while the next step is computed.

Each response, and each question whether a caller has left, is a round trip to the server of some 0.1 ms. The loop of
`generation` hands over what a step wrote, and is held only while the step before is still being sent.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from python_backends.runtime.errors import BackendError
from python_backends.text_generator.generated_sequence import Written

LOGGER = logging.getLogger(__name__)

LOOKS = 32
"""Requests of which it is asked, after each step, whether their callers have left: the longest unasked first."""


class Sender(Protocol):
    """Triton's side of one request."""

    def send(self, part: Written | BackendError, *, is_last: bool) -> None:
        """Send a part of the answer; raises where the server cannot take it."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the caller has left."""
        ...


class Outgoing:
    """A request's way out: the `Reader` of its sequence."""

    def __init__(self, sender: Sender, outbox: Outbox) -> None:
        self.sender = sender
        self.is_gone = False
        self.is_over = False
        self._outbox = outbox

    def take(self, written: Written) -> None:
        """See `Reader.take`."""
        self.is_over = bool(written.finish_reason)
        self._outbox.put(self, written)

    def fail(self, error: BackendError) -> None:
        """See `Reader.fail`."""
        self.is_over = True
        self._outbox.put(self, error)


class Outbox:
    """Queue of one step's parts of answers, and the thread that sends them, until `close`."""

    def __init__(self) -> None:
        self._step: list[tuple[Outgoing, Written | BackendError]] = []
        self._steps: queue.Queue[list[tuple[Outgoing, Written | BackendError]] | None] = queue.Queue(maxsize=1)
        self._open: deque[Outgoing] = deque()
        self._thread = threading.Thread(target=self._serve, name="outbox", daemon=True)
        self._thread.start()

    def opened(self, sender: Sender) -> Outgoing:
        """Return the way out of a request that has been read."""
        outgoing = Outgoing(sender, self)
        self._open.append(outgoing)
        return outgoing

    def put(self, outgoing: Outgoing, part: Written | BackendError) -> None:
        """Keep a part until the step is over. Called by the loop's thread only."""
        self._step.append((outgoing, part))

    def after_step(self) -> None:
        """Hand over what the step wrote; wait while the step before is being sent."""
        step, self._step = self._step, []
        self._steps.put(step)

    def close(self) -> None:
        """Send what is left, and end the thread."""
        self._steps.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (step := self._steps.get()) is not None:
            for outgoing, part in step:
                self._guarded(outgoing, lambda outgoing=outgoing, part=part: self._send(outgoing, part))  # type: ignore[misc]
            for _ in range(min(LOOKS, len(self._open))):
                outgoing = self._open.popleft()
                if not outgoing.is_over:
                    self._guarded(outgoing, lambda outgoing=outgoing: self._look(outgoing))  # type: ignore[misc]
                    self._open.append(outgoing)

    def _send(self, outgoing: Outgoing, part: Written | BackendError) -> None:
        is_last = isinstance(part, BackendError) or bool(part.finish_reason)
        outgoing.sender.send(part, is_last=is_last)

    def _look(self, outgoing: Outgoing) -> None:
        outgoing.is_gone = outgoing.is_gone or outgoing.sender.is_cancelled()

    def _guarded(self, outgoing: Outgoing, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception:
            # Whatever one request's sender raises must not keep the others' answers back.
            LOGGER.exception("a part of an answer could not be handed over: its request is given up")
            outgoing.is_gone = True
