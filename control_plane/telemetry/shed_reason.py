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
