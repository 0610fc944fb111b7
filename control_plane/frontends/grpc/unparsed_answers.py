"""Answers to the calls of one connection that need not be parsed for that: what the verbatim cache has, and refusals of calls that
were not read in time, whose head is equal to that of one before.

In a spike most calls of a connection's backlog may be late. Refused one by one the ordinary way they would take the time in which
those that are not late yet could be answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from control_plane.core.errors import ControlPlaneError
from control_plane.core.principal import Principal
from control_plane.frontends.grpc.handler import VerbatimAnswers, failure
from control_plane.protocols.http2.headers import encode_varying
from control_plane.protocols.http2.stream import WholeAnswer, WholeCall

UNREAD_PART = 0.5
"""Part of its time for which a call may wait in its connection's backlog. Answered in their order, with nothing refused but what has
expired, all would be answered just too late."""

_MOST_HEADS = 16
"""Heads that are remembered of one backlog: clients' deadlines vary, so their heads do, too."""


@dataclass(frozen=True, slots=True)
class LateHead:
    """What is known of calls from their head: whose they are, how much time they had, and how one that is late is noted."""

    principal: Principal
    timeout_s: float
    late: Callable[[Principal, float], ControlPlaneError]

    def error(self, waited_s: float) -> ControlPlaneError | None:
        """Note a call that has waited for so long, and return the error for its caller; None: it is not late."""
        if waited_s < UNREAD_PART * self.timeout_s:
            return None
        return self.late(self.principal, self.timeout_s - waited_s)


class UnparsedAnswers:
    """Answers to the calls of one connection, for its protocol engine to ask before it parses a call."""

    def __init__(self, verbatim_answer: VerbatimAnswers) -> None:
        self.came_s: float | None = None
        """When the backlog that is being read had come, by the loop's clock; None where what comes is read at once."""
        self._verbatim_answer = verbatim_answer
        self._heads: dict[bytes, LateHead] = {}

    def began_backlog(self, now_s: float) -> None:
        """Note that a backlog has come now."""
        self.came_s = now_s

    def ended_backlog(self) -> None:
        """Note that the backlog has been read, and forget its heads."""
        self.came_s = None
        self._heads.clear()

    def remember(self, block: bytes, head: LateHead) -> None:
        """Note a late call, and refuse calls of equal header blocks that are late as well."""
        if len(self._heads) < _MOST_HEADS:
            self._heads[block] = head

    def answer(self, call: WholeCall) -> WholeAnswer | None:
        """The answer to a call; None: it has to be parsed."""
        waited_s = 0.0 if self.came_s is None else asyncio.get_running_loop().time() - self.came_s
        if waited_s and (head := self._heads.get(call[0])) is not None:
            error = head.error(waited_s)
            if error is not None:
                return b"", b"", encode_varying(failure(error).trailers)
        return self._verbatim_answer(call, waited_s)
