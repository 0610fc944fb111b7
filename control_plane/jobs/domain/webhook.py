"""The delivery of a job's webhook, which is part of the job's record: pure values and transitions.

It becomes pending in the very compare-and-swap that ends the job, so that no end goes untold, whoever dies. Who delivers
takes a lease first, by the number of the attempt; what an earlier attempt still says changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

GIVE_UP_S = 86_400.0
"""Seconds after the end of the job during which its webhook is tried."""
LEASE_S = 30.0
"""Seconds after which an attempt that has not been noted is somebody else's: longer than any exchange takes."""
FIRST_DELAY_S, MAX_DELAY_S = 5.0, 7200.0
JITTER = 0.2
"""Part of a delay by which it is longer or shorter, so that deliveries that failed together do not come together."""
_MAX_ERROR_CHARS = 200


class WebhookState(StrEnum):
    """State of a delivery."""

    WAITING = "waiting"
    """The job has not ended."""
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    """Given up after a day."""
    GONE = "gone"
    """The receiver answered that nobody is there any more (410)."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """URL that is told of a job's end, and how far that is."""

    url: str
    state: WebhookState = WebhookState.WAITING
    attempts: int = 0
    due_s: float = 0.0
    """While it is pending: when it is tried next, unless who tries it now says otherwise before."""
    until_s: float = 0.0
    """When it is given up."""
    error: str = ""
    """Why the last attempt failed."""

    @property
    def is_pending(self) -> bool:
        return self.state is WebhookState.PENDING


def announced(webhook: Webhook | None, *, now_s: float) -> Webhook | None:
    """Begin to deliver: the job has ended."""
    return None if webhook is None else Webhook(webhook.url, WebhookState.PENDING, due_s=now_s, until_s=now_s + GIVE_UP_S)


def recalled(webhook: Webhook | None) -> Webhook | None:
    """Deliver nothing any more until the job ends again."""
    return None if webhook is None else Webhook(webhook.url)


def tried(webhook: Webhook, *, now_s: float) -> Webhook:
    """Note that an attempt begins, which has the delivery for a while."""
    return replace(webhook, attempts=webhook.attempts + 1, due_s=now_s + LEASE_S)


def delivered(webhook: Webhook) -> Webhook:
    """Note that the receiver has it."""
    return replace(webhook, state=WebhookState.DELIVERED, error="")


def gone(webhook: Webhook, *, error: str) -> Webhook:
    """Note that the receiver wants no more."""
    return replace(webhook, state=WebhookState.GONE, error=error)


def failed(webhook: Webhook, *, error: str, now_s: float, draw: float) -> Webhook:
    """Note that an attempt has failed: there is another one after a delay, or none in time. `draw` is from 0 to 1."""
    delay_s = min(FIRST_DELAY_S * 3.0 ** min(webhook.attempts - 1, 32), MAX_DELAY_S) * (1 + JITTER * (2 * draw - 1))
    error = error[:_MAX_ERROR_CHARS]
    if now_s + delay_s > webhook.until_s:
        return replace(webhook, state=WebhookState.FAILED, error=error)
    return replace(webhook, due_s=now_s + delay_s, error=error)
