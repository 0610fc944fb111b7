"""Quarantine for queries of death (requests that kill processes), so that one client's request does not end all replicas of a
model: suspects are sent one at a time, and a request that is found guilty is refused.

Both dispatchers call this (`fleet/routing/dispatch`, `inference/dispatch/single_server`). Digests of requests are computed only
after a death, and only for the models concerned. The workers of a gateway share their findings and take turns with suspects
through their parent (`workers/parent/findings`, `workers/suspect_turns`); separate gateways share nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from control_plane.cache.keys import identity_of
from control_plane.core.errors import DeadlineExceeded, QueryOfDeath
from control_plane.core.infer_call import InferCall
from control_plane.inference.domain.queries_of_death import REMEMBERED_S, Digest, Finding, Record, Suspects, Verdict
from control_plane.inference.domain.suspect_lanes import SuspectLanes

_log = logging.getLogger(__name__)

_AT_ONCE_BYTES = 2**18
"""Largest request that is hashed at once; hashing a larger one would hold up the event loop, so a thread does."""


class Hashable(Protocol):
    """A request, as far as its digest needs it."""

    def content(self, call: InferCall) -> Sequence[bytes]:
        """What its answer is computed from, without the request's id, in parts."""


class SuspectTurns(Protocol):
    """Port for the turns in which suspects are sent: by this process's own lanes, or by those that the workers of a gateway share."""

    def died(self, model: str, *, is_stub: bool) -> None:
        """Note a death under a request of the model."""

    async def acquire(self, model: str) -> int:
        """Wait until a suspect of the model may be sent, and return the number of its turn."""

    def end(self, turn: int, *, was_answered: bool) -> None:
        """Note that the suspect of this turn is done with."""


class OwnTurns:
    """Suspects' turns that no other process shares."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the event loop's time."""
        self._now_s = now_s
        self._lanes = SuspectLanes[int]()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Event] = {}

    def died(self, model: str, *, is_stub: bool) -> None:
        self._lanes.died(model, self._now_s(), is_stub=is_stub)

    async def acquire(self, model: str) -> int:
        turn = next(self._numbers)
        if self._lanes.ask(model, turn, self._now_s()):
            return turn
        self._waiting[turn] = asyncio.Event()
        try:
            await self._waiting[turn].wait()
        except BaseException:
            self.end(turn, was_answered=False)
            raise
        finally:
            del self._waiting[turn]
        return turn

    def end(self, turn: int, *, was_answered: bool) -> None:
        for following in self._lanes.end(turn, was_answered=was_answered):
            self._waiting[following].set()


STREAM_SUSPECT_S = 2.0
"""Time from its first piece for which a stream may be what a process dies of: alone in turn for longer than that, the streams that
a death has ended could not all be asked for again before their deadlines."""


@dataclass(slots=True)
class Suspect:
    """One request in flight that is suspect."""

    digest: Digest
    _deaths: QueriesOfDeath
    _turns: SuspectTurns
    _turn: int
    was_answered: bool = False
    _survives: asyncio.TimerHandle | None = None

    @property
    def is_stream(self) -> bool:
        """Whether its response has begun to come in pieces: then it is suspect, and keeps its turn, for a little longer."""
        return self._survives is not None

    def begin_stream(self) -> None:
        """Note that its response has begun to come in pieces; `end_turn` is called after the last."""
        self._survives = asyncio.get_running_loop().call_later(STREAM_SUSPECT_S, self.end_turn, True)

    def end_turn(self, was_answered: bool = False) -> None:
        """Let the next suspect be sent; this one `was_answered`, or has lived for long enough. Idempotent."""
        if self._survives is not None:
            self._survives.cancel()
        if was_answered and not self.was_answered:
            self._deaths.answered(self)
        self._turns.end(self._turn, was_answered=self.was_answered)


class QueriesOfDeath:
    """Quarantine of one process for requests under which processes of Triton die."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the event loop's time."""
        self.found = 0
        """Requests that were found guilty so far."""
        self.refused = 0
        """Requests that were refused since they are guilty."""
        self.tell: Callable[[Finding], None] = lambda finding: None
        """Told of what is found out here."""
        self.turns: SuspectTurns = OwnTurns(now_s=now_s)
        self.now_s = now_s
        self._suspects = Suspects()

    def watches(self, model: str) -> bool:
        """Whether requests of this model have to take their `turn`."""
        # Every request asks: while no process has died lately, without a look at the clock.
        return bool(self._suspects.models) and self._suspects.watches(model, self.now_s())

    async def refuses(self, request: Hashable, call: InferCall) -> bool:
        """Whether such a request is guilty."""
        if not self.watches(call.model_name) or not (content := request.content(call)):
            return False
        record = self._suspects.record(await digest_of(content, call), self.now_s())
        return record is not None and record.verdict is Verdict.GUILTY

    @asynccontextmanager
    async def turn(self, request: Hashable, call: InferCall, *, timeout_s: float) -> AsyncIterator[Suspect | None]:
        """Context manager: a suspect, which is sent within the block; None where the request is innocent. The turn ends with
        the block, or that of a stream that has begun by its `end_turn`.

        Raises QueryOfDeath: it is guilty. DeadlineExceeded: suspects before it took too long.
        """
        deadline_s = self.now_s() + timeout_s
        digest = await digest_of(request.content(call), call)
        while (record := self._record_of_suspect(digest)) is not None:
            try:
                async with asyncio.timeout(min(deadline_s, record.until_s) - self.now_s()):
                    turn = await self.turns.acquire(call.model_name)
            except TimeoutError as exc:
                if self.now_s() < deadline_s:
                    continue  # the suspect whose turn it is takes so long that this one is suspect no more
                raise DeadlineExceeded("its turn did not come in time: after a death, requests like it are sent one by one") from exc
            suspect = Suspect(digest, self, self.turns, turn)
            try:
                # While it waited, an equal request may have been answered, or have caused another death.
                if self._record_of_suspect(digest) is not None:
                    yield suspect
                    return
            finally:
                if not suspect.is_stream:
                    suspect.end_turn()
            break
        yield None

    async def died(self, request: Hashable, call: InferCall, server: str, *, suspect: Suspect | None, is_stub: bool) -> None:
        """Note that a process of `server` died, a Python model's stub or all of Triton, while the request was in flight
        there, sent as `suspect` or as any other.

        Raises QueryOfDeath: the request is guilty.
        """
        digest = await digest_of(request.content(call), call) if suspect is None else suspect.digest
        self.blame(digest, server, was_suspect=suspect is not None, is_stub=is_stub)

    def blame(self, digest: Digest, server: str, *, was_suspect: bool, is_stub: bool) -> None:
        """Note a death as `died` does, under a request of which only the digest is left. Raises QueryOfDeath: it is guilty."""
        model, _ = digest
        record = self._suspects.died(digest, server, self.now_s(), was_suspect=was_suspect)
        self.turns.died(model, is_stub=is_stub)
        self.tell(Finding(digest, record, is_stub))
        if record.verdict is Verdict.GUILTY:
            self.found += 1
            _log.warning("model %s: a request is refused for %d s: %s", model, REMEMBERED_S, _deaths_text(digest, record))
            raise self._refusal(digest, record)

    def answered(self, suspect: Suspect) -> None:
        """Note that a suspect has been answered: it was not the cause."""
        self._suspects.answered(suspect.digest)
        suspect.was_answered = True
        self.tell(Finding(suspect.digest, None))

    def stream_begins(self, request: Hashable, call: InferCall, server: str, suspect: Suspect | None) -> StreamCase:
        """Note that the first piece of a response has come from `server`, which says nothing of what follows."""
        if suspect is not None:
            suspect.begin_stream()
        return self.case_of(request, call, server, suspect, begun_s=self.now_s())

    def case_of(self, request: Hashable, call: InferCall, server: str, suspect: Suspect | None, *, begun_s: float) -> StreamCase:
        """Return the case of a request whose response has begun, or may have."""
        digest = digest_at_once(request.content(call), call) if suspect is None else suspect.digest
        return StreamCase(self, digest, server, suspect, begun_s)

    def learn(self, finding: Finding) -> None:
        """Take over what another process of the gateway has found out."""
        model, _ = finding.digest
        self._suspects.learn(finding.digest, finding.record, self.now_s())
        if finding.record is not None:
            self.turns.died(model, is_stub=finding.is_stub)

    def _record_of_suspect(self, digest: Digest) -> Record | None:
        """Return what is known of a suspect; None where the request is innocent. Raises QueryOfDeath."""
        record = self._suspects.record(digest, self.now_s())
        if record is not None and record.verdict is Verdict.GUILTY:
            raise self._refusal(digest, record)
        return record

    def _refusal(self, digest: Digest, record: Record) -> QueryOfDeath:
        self.refused += 1
        left_s = max(1.0, record.until_s - self.now_s())
        return QueryOfDeath(f"the request is not sent to Triton for {left_s:.0f} s: {_deaths_text(digest, record)}")


@dataclass(slots=True)
class StreamCase:
    """Case of a request whose response is streamed: it may be what a process dies of for its first seconds."""

    _deaths: QueriesOfDeath
    digest: Digest | None
    """None: it is too large to be looked at for each stream, which holds its digest instead of it."""
    _server: str
    suspect: Suspect | None
    _begun_s: float

    def died(self, *, is_stub: bool) -> None:
        """Note that a process died, as `QueriesOfDeath.died` does. Raises QueryOfDeath."""
        if self.digest is not None and self._deaths.now_s() - self._begun_s <= STREAM_SUSPECT_S:
            self._deaths.blame(self.digest, self._server, was_suspect=self.suspect is not None, is_stub=is_stub)

    def ended(self, *, was_answered: bool) -> None:
        """Note that the stream has been closed; `was_answered`: at its end."""
        if self.suspect is not None:
            self.suspect.end_turn(was_answered)


async def digest_of(content: Sequence[bytes], call: InferCall) -> Digest:
    """Return what a request of this content is known by, here and to other processes."""
    known = digest_at_once(content, call)
    return await asyncio.to_thread(_digest, content, call) if known is None else known


def digest_at_once(content: Sequence[bytes], call: InferCall) -> Digest | None:
    """Return what `digest_of` does, without a wait; None for a request that is too large to be hashed on the event loop."""
    return _digest(content, call) if sum(map(len, content)) <= _AT_ONCE_BYTES else None


def _digest(content: Sequence[bytes], call: InferCall) -> Digest:
    return call.model_name, identity_of(call.model_version.encode(), *content)


def _deaths_text(digest: Digest, record: Record) -> str:
    return f"{len(record.deaths)} processes died under it (servers {', '.join(record.deaths)}; digest {digest[1].hex()[:16]})"
