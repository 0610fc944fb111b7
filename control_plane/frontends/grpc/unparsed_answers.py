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
from control_plane.frontends.grpc.arrivals import Arrivals
from control_plane.frontends.grpc.handler import VerbatimAnswers, failure
from control_plane.protocols.http2.headers import encode_varying
from control_plane.protocols.http2.stream import WholeAnswer, WholeCall

UNREAD_PART = 0.35
"""Part of its time for which a call may wait in its connection's backlog. Answered in their order, with nothing refused but what has
expired, all would be answered just too late; with a half, those of a round of the backlog in which few were late were."""

_MOST_HEADS = 16
"""Heads that are remembered of one backlog: clients' deadlines vary, so their heads do, too."""


@dataclass(slots=True)
class LateHead:
    """What is known of calls from their head: whose they are, how much time they had, and how those that are late are noted."""

    principal: Principal
    timeout_s: float
    late: Callable[[Principal, float, int], ControlPlaneError]
    _refusal: bytes = b""
    """Trailers of those that could still be asked elsewhere."""
    _unnoted: int = 0
    """Calls that were refused by these since the last `note`."""

    def error(self, waited_s: float) -> ControlPlaneError | None:
        """Note a call that has waited for so long, and return the error for its caller; None: it is not late."""
        if waited_s < UNREAD_PART * self.timeout_s:
            return None
        return self.late(self.principal, self.timeout_s - waited_s, 1)

    def refusal(self, waited_s: float) -> bytes | None:
        """Return the trailers of a call that is late (None: it is not); unlike `error` most are noted only when `note` is called."""
        if self._refusal and UNREAD_PART * self.timeout_s <= waited_s < self.timeout_s:
            self._unnoted += 1
            return self._refusal
        error = self.error(waited_s)
        if error is None:
            return None
        trailers = encode_varying(failure(error).trailers)
        if waited_s < self.timeout_s:
            self._refusal = trailers
        return trailers

    def note(self) -> None:
        """Note the calls that have not been noted."""
        if self._unnoted:
            self.late(self.principal, UNREAD_PART * self.timeout_s, self._unnoted)
            self._unnoted = 0


class UnparsedAnswers:
    """Answers to the calls of one connection, for its protocol engine to ask before it parses a call."""

    def __init__(self, verbatim_answer: VerbatimAnswers, arrivals: Arrivals) -> None:
        self._verbatim_answer, self._arrivals = verbatim_answer, arrivals
        self._heads: dict[bytes, LateHead] = {}

    def forget_heads(self) -> None:
        """Forget the heads of late calls, and note those that were refused by them."""
        for head in self._heads.values():
            head.note()
        self._heads.clear()

    def remember(self, block: bytes, head: LateHead) -> None:
        """Note a late call, and refuse calls of equal header blocks that are late as well."""
        if len(self._heads) < _MOST_HEADS:
            self._heads.setdefault(block, head)  # one that is known has calls to note

    def answer(self, call: WholeCall) -> WholeAnswer | None:
        """The answer to a call; None: it has to be parsed."""
        waited_s = self._waited_s()
        if waited_s and (trailers := self._refusal(call[0], waited_s)) is not None:
            return b"", b"", trailers
        return self._verbatim_answer(call, waited_s)

    def refuse_head(self, block: bytes) -> bytes | None:
        """The trailers that refuse a call of which the head alone has come; None: it has to be parsed."""
        return self._refusal(block, self._waited_s()) if self._heads else None

    def _refusal(self, block: bytes, waited_s: float) -> bytes | None:
        head = self._heads.get(block)
        return None if head is None else head.refusal(waited_s)

    def _waited_s(self) -> float:
        came_s = self._arrivals.came_s
        return 0.0 if came_s is None else asyncio.get_running_loop().time() - came_s
