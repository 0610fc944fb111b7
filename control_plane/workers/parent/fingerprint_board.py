"""Fingerprints of the loaded models, for the workers: each may answer from its cache only for those that it has been told.

Implements `models/ports.FingerprintBoard`; `workers/parent/workers` has one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from math import inf

from control_plane.core.fingerprint import Fingerprint
from control_plane.models.fingerprints import Fingerprints
from control_plane.workers.messages import ToWorker
from control_plane.workers.messages.to_workers import FingerprintsChanged, RelyUntil
from control_plane.workers.parent.live_workers import LiveWorkers
from control_plane.workers.parent.worker_handle import WorkerHandle

_log = logging.getLogger(__name__)

_TAKE_TIMEOUT_S = 5.0
"""Seconds for a worker to acknowledge new fingerprints; a later one might still answer from another model's
cached answers, and is killed."""


class WorkersFingerprintBoard:
    """Board of fingerprints that every worker has acknowledged, or has not long to live."""

    def __init__(self, live: LiveWorkers) -> None:
        self._live = live
        self.known = Fingerprints()
        self._rely_until = RelyUntil(None)
        self._number = 0

    def snapshot(self) -> list[ToWorker]:
        """The messages for a worker that starts: all fingerprints at once."""
        reliance = [self._rely_until] if self._rely_until.until_s is not None else []
        return [*reliance, _message_of(self._number, self.known.all())]

    async def publish(self, changes: Mapping[str, Fingerprint | None]) -> None:
        """Send fingerprints; return when all workers that accept requests have acknowledged, the late ones
        being killed."""
        self.known.change(changes)
        self._number += 1
        number = self._number
        # Others answer nobody before they have acknowledged all fingerprints (`workers/parent/workers`).
        asked = [worker for worker in self._live if worker.was_told_to_listen]
        self._live.tell(_message_of(number, changes))
        try:
            async with asyncio.timeout(_TAKE_TIMEOUT_S):
                await self._live.until(lambda: not self._late(asked, number))
        except TimeoutError:
            late = self._late(asked, number)
            _log.error("%d workers did not acknowledge in time which models are loaded and are killed", len(late))
            for worker in late:
                worker.process.kill()

    def rely_until(self, until_s: float) -> None:
        """Have all fingerprints unknown in every worker from that time on (`Fingerprints.rely_until`)."""
        self._rely_until = RelyUntil(None if until_s == inf else until_s)
        self._live.tell(self._rely_until)

    async def make_unknown(self, models: Iterable[str]) -> None:
        """Nothing to do: the workers know already that these fingerprints are unknown."""

    async def forget(self, models: Iterable[str]) -> None:
        """Nothing to do, for the same reason."""

    def _late(self, asked: list[WorkerHandle], number: int) -> list[WorkerHandle]:
        return [worker for worker in asked if worker.acknowledged < number and worker in self._live]


def _message_of(number: int, changes: Mapping[str, Fingerprint | None]) -> FingerprintsChanged:
    return FingerprintsChanged(number, {name: astuple(each) if each else None for name, each in changes.items()})
