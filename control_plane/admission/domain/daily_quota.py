"""Daily quota: whether a tenant has compute units left for today (UTC). Pure; called by
`admission/tenant_limits`.

The stored sum is a few seconds old, so a process adds what it has admitted itself since. What other processes
admitted meanwhile is unknown to it: a quota may be exceeded by some seconds' worth.
"""

from __future__ import annotations

from datetime import date

DAY_S = 86400

# Retry-After for a process whose share is used up while others have units left: shares are computed anew each
# second.
_SHARES_CHANGE_S = 1.0

_EPOCH = date(1970, 1, 1).toordinal()


def day_number(now_s: float) -> int:
    """Return the UTC day of a time in seconds since 1970, as the number of days since 1970."""
    return int(now_s // DAY_S)


def number_of_day(day: str) -> int:
    """Return the number of days since 1970 of a date in ISO 8601. Raises ValueError: it is no such date."""
    return date.fromisoformat(day).toordinal() - _EPOCH


def quota_wait_s(quota: float, *, stored: float, own: float, share: float, now_s: float) -> float | None:
    """Return the seconds until the tenant may have units again, or None if it has some left now.

    `stored` is the sum of all processes, `own` what this process has admitted that `stored` lacks, and
    `share` is this process's share of what is left, from 0 to 1.
    """
    if own < (quota - stored) * share:
        return None
    return _SHARES_CHANGE_S if stored + own < quota else DAY_S - now_s % DAY_S
