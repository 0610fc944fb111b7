"""Reasons for load shedding: why a valid and permitted request was refused."""

from __future__ import annotations

from enum import Enum


class ShedReason(Enum):
    """Limit that a shed request exceeded; label `reason` of the metrics."""

    RATE = "rate"
    CONCURRENCY = "concurrency"
    QUOTA = "quota"
    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline"
    UNREAD = "unread"
    """The gateway itself was too busy to read it in time."""
    NO_IDLE_ROOM = "no_idle_room"
    """The request was another region's, and there was no idle room for it."""
