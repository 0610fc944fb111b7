"""Whether a tenant has compute units left today, UTC; asked by `admission/admission`.

What is stored is a few seconds old, so a process adds what it has let through itself since. What others let through
meanwhile is not known: a quota may be exceeded by some seconds' worth.
"""

from __future__ import annotations

from datetime import date

DAY_S = 86400

# How soon the processes' shares of a quota may have changed.
_SHARES_CHANGE_S = 1.0

_EPOCH = date(1970, 1, 1).toordinal()


def day_number(now_s: float) -> int:
    """Days since 1970."""
    return int(now_s // DAY_S)


def number_of_day(day: str) -> int:
    """Days from 1970 to one in ISO 8601. Raises ValueError."""
    return date.fromisoformat(day).toordinal() - _EPOCH


def quota_wait_s(quota: float, *, stored: float, own: float, share: float, now_s: float) -> float | None:
    """Seconds until units are to be had again; None where they are now.

    `own` is what this process has let through beside what is `stored`, `share` its part of what is left.
    """
    if own < (quota - stored) * share:
        return None
    return _SHARES_CHANGE_S if stored + own < quota else DAY_S - now_s % DAY_S
