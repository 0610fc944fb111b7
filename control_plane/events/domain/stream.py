"""Streams of events that can be subscribed to."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Stream(StrEnum):
    """Stream of events of one kind; the value is its name in Redis and in the admin API's paths."""

    USAGE = "usage"
    AUDIT = "audit"
    REQUESTS = "requests"
    GATEWAY = "gateway"


MEANINGS: Mapping[Stream, str] = {
    Stream.USAGE: "sums of what was used, for billing: exact, each once",
    Stream.AUDIT: "entries of the audit log: exact, each once",
    Stream.REQUESTS: "a record of each request that has ended; dropped where they cannot be sent in time",
    Stream.GATEWAY: "loads, evictions, servers that come and go, steps of rollouts; dropped as requests are",
}
