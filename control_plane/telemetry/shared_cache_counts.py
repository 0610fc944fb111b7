"""Counters of lookups in and writes to the shared cache (the Redis of `--cache-url`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SharedCacheCounts:
    """Counters since the start of the process. Each key looked up counts once, as one of the first seven
    fields.
    """

    hits: int = 0
    misses: int = 0
    late: int = 0
    """Lookups whose answer came after the request had stopped waiting for it."""
    damaged: int = 0
    """Lookups that found a value which is not what was stored under that key."""
    failed: int = 0
    """Lookups that ended with an error."""
    away: int = 0
    """Lookups not sent, since the circuit breaker is open: the cache does not answer."""
    slow: int = 0
    """Lookups not sent, since computing the response takes less time than waiting for the cache."""
    written: int = 0
    dropped: int = 0
    """Responses that were to be stored and were not, for whatever reason."""
