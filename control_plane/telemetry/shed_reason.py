"""Why a request was turned away that was allowed and in order."""

from __future__ import annotations

from enum import Enum


class ShedReason(Enum):
    """The value is what metrics show."""

    RATE = "rate"
    CONCURRENCY = "concurrency"
    QUOTA = "quota"
    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline"
