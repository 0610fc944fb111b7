"""Suspects' turns that the workers of a gateway share: the lanes in the parent, and a worker's client of them.

Each worker sent its suspects one at a time before, beside another's: a replica that died under one blamed both
(`inference/domain/suspect_lanes`).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

from control_plane.inference.domain.queries_of_death import Finding
from control_plane.inference.domain.suspect_lanes import SuspectLanes
from control_plane.workers.messages.from_workers import AskTurn, EndTurn
from control_plane.workers.messages.to_workers import TurnGiven

Send = Callable[[TurnGiven], None]


class WorkersTurns:
    """Lanes of all workers' suspects, in the parent. Workers are told apart by how they are reached."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lanes = SuspectLanes[tuple[Send, int]]()
        self._turns: dict[Send, set[int]] = {}

    def found(self, finding: Finding) -> None:
        """Take in what a worker has found out."""
        model, _ = finding.digest
        if finding.record is not None:
            self._lanes.died(model, self._now_s(), is_stub=finding.is_stub)

    def take(self, asked: AskTurn | EndTurn, send: Send) -> None:
        """Answer a worker."""
        turns = self._turns.setdefault(send, set())
        if isinstance(asked, AskTurn):
            turns.add(asked.number)
            if self._lanes.ask(asked.model, (send, asked.number), self._now_s()):
                send(TurnGiven(asked.number))
        else:
            turns.discard(asked.number)
            self._end(send, asked.number, was_answered=asked.was_answered)

    def left(self, send: Send) -> None:
        """End the turns of a worker that has ended, or is frozen."""
        for number in self._turns.pop(send, ()):
            self._end(send, number, was_answered=False)

    def _end(self, send: Send, number: int, *, was_answered: bool) -> None:
        for following, turn in self._lanes.end((send, number), was_answered=was_answered):
            following(TurnGiven(turn))


class RemoteTurns:
    """Client of the parent's lanes, in a worker: `inference/retries/queries_of_death.SuspectTurns` over the link."""

    def __init__(self, send: Callable[[AskTurn | EndTurn], None]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Event] = {}

    def died(self, model: str, *, is_stub: bool) -> None:
        """Nothing to do: the parent hears of it with the finding, before this worker asks for a turn."""

    async def acquire(self, model: str) -> int:
        number = next(self._numbers)
        given = self._waiting[number] = asyncio.Event()
        self._send(AskTurn(number, model))
        try:
            await given.wait()
        except BaseException:
            self.end(number, was_answered=False)
            raise
        finally:
            del self._waiting[number]
        return number

    def end(self, turn: int, *, was_answered: bool) -> None:
        self._send(EndTurn(turn, was_answered))

    def given(self, message: TurnGiven) -> None:
        """Let a suspect go whose turn it is; it may have been given up."""
        if (waiting := self._waiting.get(message.number)) is not None:
            waiting.set()
