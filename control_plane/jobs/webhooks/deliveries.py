"""Deliveries of webhooks: takes those that are due, sends each, and notes what came of it in the job's record.

Every process that shares a store of jobs has one. A delivery is taken by compare-and-swap, for half a minute; one whose
process dies before it has noted the answer is sent again, with the same `webhook-id`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from control_plane.core.errors import InvalidRequest, StoreUnavailable
from control_plane.jobs.domain.job import Job
from control_plane.jobs.domain.transitions import WrongState
from control_plane.jobs.domain.webhook import GIVE_UP_S, Webhook, WebhookState, delivered, failed, gone, tried
from control_plane.jobs.ports import JobStore
from control_plane.jobs.webhooks.domain.message import body_of, headers_of
from control_plane.jobs.webhooks.domain.turns import OF_TENANT, turns
from control_plane.jobs.webhooks.domain.url import UrlRules
from control_plane.jobs.webhooks.ports import NotDelivered, Post

_log = logging.getLogger(__name__)

_PERIOD_S = 0.5
_AFTER_DEFECT_S = 30.0
_MOST = 256
"""Deliveries of this process at a time."""
_GONE = 410
_GONE_S = GIVE_UP_S
"""Seconds for which a receiver that said 410 is left alone."""


class WebhookDeliveries:
    """Deliverer of one process; `run` runs it."""

    def __init__(
        self,
        *,
        store: JobStore,
        post: Post,
        rules: UrlRules,
        secrets_of: Callable[[str], Sequence[str]],
        today_s: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`secrets_of` returns what a tenant's webhooks are signed with; `today_s` is seconds since 1970, `draw` a number
        from 0 to 1.
        """
        self._store = store
        self._post = post
        self._rules = rules
        self._secrets_of = secrets_of
        self._today_s = today_s
        self._draw = draw
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._failing: set[str] = set()
        self.outcomes: Counter[WebhookState] = Counter()
        """What attempts of this process came to: PENDING for those that are repeated."""

    def check(self, tenant: str, url: str) -> Webhook:
        """Return the webhook of a job that is submitted. Raises InvalidRequest: it could not be delivered."""
        self._rules.parse(url)
        if not self._secrets_of(tenant):
            raise InvalidRequest("webhooks are signed, and this tenant has no secret for it; an administrator makes one")
        return Webhook(url)

    async def run(self) -> None:
        """Deliver what is due, through outages, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                pause_s = _PERIOD_S
                try:
                    await self.look(tasks)
                except StoreUnavailable as exc:
                    _log.debug("no webhook is delivered for now: %s", exc)  # the sweeper tells of the same outage
                except Exception:
                    _log.exception("no webhook is delivered for now; this is a defect")
                    pause_s = _AFTER_DEFECT_S
                await self._pause(pause_s)

    async def look(self, tasks: asyncio.TaskGroup) -> None:
        """Begin the deliveries that are due, as far as there is room. Raises StoreUnavailable."""
        now_s = self._today_s()
        if (room := _MOST - len(self._under_way)) <= 0:
            return
        due = await self._store.webhooks.due(now_s, of_tenant=OF_TENANT)
        ids = turns(due, Counter(self._under_way.values()), self._failing, room=room)
        for job in await self._store.claim(ids, lambda job: _taken(job, now_s=now_s), most=len(ids)) if ids else ():
            task = tasks.create_task(self._deliver(job), name="webhook")
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
            _log.warning("a webhook is left to the next attempt: %s", exc)
        except Exception:
            _log.exception("a webhook was not delivered; this is a defect")

    async def _attempt(self, job: Job) -> Webhook:
        """Send a delivery, and return it as it is then. Raises StoreUnavailable."""
        webhook = job.webhook
        assert webhook is not None
        if await self._store.webhooks.has_ended(job.tenant, webhook.url, now_s=self._today_s()):
            return gone(webhook, error="the receiver answered 410 before, and is left alone for a day")
        try:
            status = await self._send(job, webhook)
        except (NotDelivered, InvalidRequest) as exc:
            return self._failed(job.tenant, webhook, str(exc))
        if 200 <= status < 300:
            self._failing.discard(job.tenant)
            return delivered(webhook)
        if status == _GONE:
            await self._store.webhooks.end(job.tenant, webhook.url, until_s=self._today_s() + _GONE_S)
            return gone(webhook, error=f"the receiver answered {_GONE}")
        return self._failed(job.tenant, webhook, f"the receiver answered {status}")

    async def _send(self, job: Job, webhook: Webhook) -> int:
        """Send a delivery, and return the answer's status. Raises NotDelivered, InvalidRequest: the URL is not allowed now."""
        secrets = self._secrets_of(job.tenant)
        if not secrets:
            raise NotDelivered("the tenant has no secret to sign with")
        body = body_of(job)
        return await self._post.post(self._rules.parse(webhook.url), headers_of(job, body, secrets, now_s=self._today_s()), body)

    def _failed(self, tenant: str, webhook: Webhook, error: str) -> Webhook:
        self._failing.add(tenant)
        return failed(webhook, error=error, now_s=self._today_s(), draw=self._draw())

    async def _note(self, job: Job, webhook: Webhook) -> None:
        """Note what came of an attempt, unless another one is under way. Raises StoreUnavailable."""
        self.outcomes[webhook.state] += 1
        if webhook.state is WebhookState.FAILED:
            _log.warning("the webhook of job %s is given up: %s", job.id, webhook.error)
        found: Job | None = job
        while found is not None and (found.webhook, found.ended_s) == (job.webhook, job.ended_s):
            if await self._store.replace(replace(found, revision=found.revision + 1, webhook=webhook)):
                return
            found = await self._store.get(job.id)  # such as one that was charged meanwhile


def _taken(job: Job, *, now_s: float) -> Job:
    """Take a delivery that is due. Raises WrongState."""
    if job.webhook is None or not job.webhook.is_pending or job.webhook.due_s > now_s:
        raise WrongState(f"no webhook of job {job.id} is due")
    return replace(job, revision=job.revision + 1, webhook=tried(job.webhook, now_s=now_s))
