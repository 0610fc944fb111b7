"""Watch over the claims of a runner: renews their leases while their jobs are computed, and ends the computing of one
that is lost.

One task looks after all of them: most jobs end before it looks for the first time, and a task for each would cost them
more than the rest of their claim. Used by `jobs/runner`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.domain.job import Job, JobState
from control_plane.jobs.domain.transitions import RetryPolicy, renewed
from control_plane.jobs.ports import JobStore

_log = logging.getLogger(__name__)

_PERIOD_S = 1.0
"""Interval at which claims are looked after: a cancelled job ends within it."""
_RENEWED_AFTER = 1 / 3
"""Part of the lease after which it is renewed."""


class Claim:
    """A job that a runner has claimed, in the version that it knows."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_lost = False
        """Whether the job was cancelled or has expired, or another runner has it."""


class ClaimWatch:
    """Watch over the claims of one runner; `run` runs it."""

    def __init__(self, store: JobStore, policy: RetryPolicy, today_s: Callable[[], float]) -> None:
        self._store, self._policy, self._today_s = store, policy, today_s
        self._watched: dict[Claim, asyncio.Task[object]] = {}

    @contextmanager
    def over(self, claim: Claim) -> Iterator[None]:
        """Watch a claim within the block, whose task is cancelled once the claim is lost."""
        task = asyncio.current_task()
        assert task is not None
        self._watched[claim] = task
        try:
            yield
        finally:
            del self._watched[claim]

    async def run(self) -> None:
        """Look after all claims every second, until cancelled."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            if self._watched:
                await asyncio.gather(*map(self._look, list(self._watched)))  # one that waits for its store delays no other

    async def _look(self, claim: Claim) -> None:
        if not await self._is_held(claim) and (task := self._watched.get(claim)) is not None and not claim.is_lost:
            claim.is_lost = True
            task.cancel()

    async def _is_held(self, claim: Claim) -> bool:
        """Bring a claim up to date, and renew its lease where that is due; False: it is lost."""
        now_s = self._today_s()
        try:
            found = await self._store.get(claim.job.id)
            if found is None or found.fence != claim.job.fence or found.state is not JobState.RUNNING:
                return False
            claim.job = found
            left = (found.lease_until_s - now_s) / self._policy.lease_s
            if abs(left - 1) > _RENEWED_AFTER:  # more is left where the clock was set back
                new = renewed(found, now_s=now_s, policy=self._policy)
                if await self._store.replace(new):
                    claim.job = new
        except StoreUnavailable:  # nor can others take it; who has reached the store meanwhile shows by the number of the claim
            return True
        except Exception:  # such as a record that this version cannot read: one job must not end the gateway
            _log.exception("job %s cannot be looked after; this is a defect", claim.job.id)
            return now_s < claim.job.lease_until_s
        return True
