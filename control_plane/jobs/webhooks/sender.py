"""Sends webhooks to the URLs that callers have named; implements `jobs/ports.Courier`. Called by `jobs/deliveries`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from control_plane.core.errors import InvalidRequest
from control_plane.jobs.domain.delivery import GIVE_UP_S, Delivery, delivered, gone
from control_plane.jobs.domain.job import Job
from control_plane.jobs.ports import DeliveryIndex, NotDelivered
from control_plane.jobs.webhooks.domain.message import body_of, headers_of
from control_plane.jobs.webhooks.domain.url import UrlRules
from control_plane.jobs.webhooks.ports import Post

_GONE = 410
_GONE_S = GIVE_UP_S
"""Seconds for which a receiver that said 410 is left alone."""


class WebhookSender:
    """Sender of webhooks, of one process."""

    def __init__(
        self,
        *,
        index: DeliveryIndex,
        post: Post,
        rules: UrlRules,
        secrets_of: Callable[[str], Sequence[str]],
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`secrets_of` returns what a tenant's webhooks are signed with; `today_s` is seconds since 1970."""
        self._index = index
        self._post = post
        self._rules = rules
        self._secrets_of = secrets_of
        self._today_s = today_s

    def accepted(self, tenant: str, url: str) -> Delivery:
        """Return the webhook of a job that is submitted. Raises InvalidRequest: it could not be delivered."""
        self._rules.parse(url)
        if not self._secrets_of(tenant):
            raise InvalidRequest(
                "webhooks are signed, and this tenant has no secret for it: an administrator makes one (tidegate webhooks create)"
            )
        return Delivery(url)

    async def deliver(self, job: Job, delivery: Delivery) -> Delivery:
        if await self._index.has_ended(job.tenant, delivery.url, now_s=self._today_s()):
            return gone(delivery, error="the receiver answered 410 before, and is left alone for a day")
        status = await self._send(job, delivery.url)
        if status == _GONE:
            now_s = self._today_s()
            await self._index.end(job.tenant, delivery.url, now_s=now_s, until_s=now_s + _GONE_S)
            return gone(delivery, error=f"the receiver answered {_GONE}")
        if not 200 <= status < 300:
            raise NotDelivered(f"the receiver answered {status}")
        return delivered(delivery)

    async def _send(self, job: Job, url: str) -> int:
        """Send the message, and return the answer's status. Raises NotDelivered."""
        secrets = self._secrets_of(job.tenant)
        if not secrets:
            raise NotDelivered("the tenant has no secret to sign with")
        try:
            where = self._rules.parse(url)
        except InvalidRequest as exc:  # allowed when it was accepted
            raise NotDelivered(str(exc)) from exc
        body = body_of(job)
        return await self._post.post(where, headers_of(job, body, secrets, now_s=self._today_s()), body)
