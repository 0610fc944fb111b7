"""Deliveries of what jobs have come to: takes those that are due, has each tried, and notes what came of it in the record.

Every process that shares a store of jobs has one. A delivery is taken by compare-and-swap, for a while; one whose process
dies before it has noted the outcome is made again, and its receiver can tell by its id, or its name.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping

from control_plane.core.errors import DEFECT_TEXT, StoreUnavailable
from control_plane.jobs.domain.delivery import Delivery, DeliveryKind, DeliveryState, failed
from control_plane.jobs.domain.delivery_turns import OF_TENANT, turns
from control_plane.jobs.domain.job import Job
from control_plane.jobs.domain.transitions import delivery_noted, delivery_taken
from control_plane.jobs.ports import Courier, JobStore, NotDelivered

_log = logging.getLogger(__name__)

_PERIOD_S = 0.5
_AFTER_DEFECT_S = 30.0
_MOST = 256
"""Deliveries of this process at a time."""


class Deliveries:
    """Scheduler of one process for the deliveries of ended jobs; `run` runs it."""

    def __init__(
        self,
        *,
        store: JobStore,
        couriers: Mapping[DeliveryKind, Courier],
        today_s: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`couriers` make the attempts, by what is delivered; `today_s` is seconds since 1970, `draw` a number from 0 to 1."""
        self._store = store
        self._couriers = couriers
        self._today_s = today_s
        self._draw = draw
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._failing: set[str] = set()
        self.outcomes: Counter[tuple[DeliveryKind, DeliveryState]] = Counter()
        """What attempts of this process came to: PENDING for those that are repeated."""

    async def run(self) -> None:
        """Deliver what is due, through outages, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                pause_s = _PERIOD_S
                try:
                    await self.look(tasks)
                except StoreUnavailable as exc:
                    _log.debug("nothing is delivered for now: %s", exc)  # the sweeper tells of the same outage
                except Exception:
                    _log.exception("nothing is delivered for now; this is a defect")
                    pause_s = _AFTER_DEFECT_S
                await self._pause(pause_s)

    async def look(self, tasks: asyncio.TaskGroup) -> None:
        """Begin the deliveries that are due, as far as there is room. Raises StoreUnavailable."""
        now_s = self._today_s()
        if (room := _MOST - len(self._under_way)) <= 0:
            return
        due = await self._store.deliveries.due(now_s, of_tenant=OF_TENANT)
        ids = turns(due, Counter(self._under_way.values()), self._failing, room=room)
        for job in await self._store.claim(ids, lambda job: delivery_taken(job, now_s=now_s), most=len(ids)) if ids else ():
            task = tasks.create_task(self._deliver(job), name="job-delivery")
            self._under_way[task] = job.tenant
            task.add_done_callback(self._under_way.pop)

    async def _pause(self, timeout_s: float) -> None:
        """Wait for the next look: for a moment, or until there is room for another delivery."""
        if self._under_way:
            await asyncio.wait(tuple(self._under_way), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(timeout_s)

    async def _deliver(self, job: Job) -> None:
        try:
            await self._note(job, await self._attempt(job))
        except StoreUnavailable as exc:
            _log.warning("a delivery is left to the next attempt: %s", exc)
        except Exception:
            _log.exception("a delivery was not made; this is a defect")

    async def _attempt(self, job: Job) -> Delivery:
        """Make an attempt, and return the delivery as it is then. Raises StoreUnavailable."""
        assert job.due is not None
        kind, delivery = job.due
        try:
            courier = self._couriers.get(kind)
            if courier is None:
                raise NotDelivered("this is switched off now")
            done = await courier.deliver(job, delivery)
        except NotDelivered as exc:
            self._failing.add(job.tenant)
            done = failed(delivery, error=str(exc), now_s=self._today_s(), draw=self._draw())
        except StoreUnavailable:
            raise
        except Exception:  # it counts as an attempt, or the delivery would be tried for ever, and hold its tenant's place
            _log.exception("the %s of job %s was not delivered; this is a defect", kind, job.id)
            self._failing.add(job.tenant)
            done = failed(delivery, error=DEFECT_TEXT, now_s=self._today_s(), draw=self._draw())
        else:
            self._failing.discard(job.tenant)
        if done.state is DeliveryState.FAILED:
            _log.warning("the %s of job %s is given up: %s", kind, job.id, done.error)
        self.outcomes[kind, done.state] += 1
        return done

    async def _note(self, job: Job, done: Delivery) -> None:
        """Note what came of an attempt, unless another one is under way. Raises StoreUnavailable."""
        found: Job | None = job
        while found is not None and (found.due, found.ended_s) == (job.due, job.ended_s):
            if await self._store.replace(delivery_noted(found, done, now_s=self._today_s())):
                return
            found = await self._store.get(job.id)  # such as one that was charged meanwhile
