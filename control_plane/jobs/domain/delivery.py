"""The delivery of what a job has come to (its output to where its caller wants it, its webhook), which is part of the job's
record: pure values and transitions.

It becomes pending in the very compare-and-swap that ends the job, so that no end goes untold, whoever dies. Who delivers
takes a lease first, by the number of the attempt; what an earlier attempt still says changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

GIVE_UP_S = 86_400.0
"""Seconds for which a delivery is tried."""
LEASE_S = 150.0
"""Seconds after which an attempt that has not been noted is somebody else's: longer than any attempt takes."""
FIRST_DELAY_S, MAX_DELAY_S = 5.0, 7200.0
JITTER = 0.2
"""Part of a delay by which it is longer or shorter, so that deliveries that failed together do not come together."""
_MAX_ERROR_CHARS = 200


class DeliveryKind(StrEnum):
    """Kind of a delivery, in the order in which a job's deliveries are made."""

    OUTPUT = "output"
    WEBHOOK = "webhook"


class DeliveryState(StrEnum):
    """State of a delivery."""

    WAITING = "waiting"
    """The job has not ended, or ended with nothing to deliver."""
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    """Given up after a day."""
    GONE = "gone"
    """The receiver answered that nobody is there any more (410)."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """URL that gets something, and how far that is."""

    url: str
    state: DeliveryState = DeliveryState.WAITING
    attempts: int = 0
    due_s: float = 0.0
    """While the delivery is pending: when it is tried next, unless whoever tries it now says otherwise before."""
    until_s: float = 0.0
    """When the delivery is given up."""
    error: str = ""
    """Why the last attempt failed."""
    event: str = ""
    """Type of the event that is told instead of the job's own end: of what the job is a part of (`batch.completed`)."""
    about: str = ""
    """Id of what that event is about."""

    @property
    def begun_s(self) -> float:
        """When the delivery became pending."""
        return self.until_s - GIVE_UP_S

    @property
    def is_pending(self) -> bool:
        return self.state is DeliveryState.PENDING


def announced(delivery: Delivery | None, *, now_s: float) -> Delivery | None:
    """Begin to deliver; what is told of something else goes on as it does."""
    return (
        delivery
        if delivery is None or delivery.event
        else Delivery(delivery.url, DeliveryState.PENDING, due_s=now_s, until_s=now_s + GIVE_UP_S)
    )


def recalled(delivery: Delivery | None) -> Delivery | None:
    """Deliver nothing any more until the job ends again; what is told of something else goes on as it does."""
    return delivery if delivery is None or delivery.event else Delivery(delivery.url)


def tried(delivery: Delivery, *, now_s: float) -> Delivery:
    """Note that an attempt begins, which has the delivery for a while."""
    return replace(delivery, attempts=delivery.attempts + 1, due_s=now_s + LEASE_S)


def delivered(delivery: Delivery) -> Delivery:
    """Note that the receiver has it."""
    return replace(delivery, state=DeliveryState.DELIVERED, error="")


def gone(delivery: Delivery, *, error: str) -> Delivery:
    """Note that the receiver wants no more."""
    return replace(delivery, state=DeliveryState.GONE, error=error)


def failed(delivery: Delivery, *, error: str, now_s: float, draw: float) -> Delivery:
    """Note that an attempt has failed: there is another one after a delay, or none in time. `draw` is from 0 to 1."""
    delay_s = min(FIRST_DELAY_S * 3.0 ** min(delivery.attempts - 1, 32), MAX_DELAY_S) * (1 + JITTER * (2 * draw - 1))
    error = error[:_MAX_ERROR_CHARS]
    if now_s + delay_s > delivery.until_s:
        return replace(delivery, state=DeliveryState.FAILED, error=error)
    return replace(delivery, due_s=now_s + delay_s, error=error)
