"""Ids of events in a feed: the feed's own id and the event's number in it.

A reader that comes back names the last event that it has. Numbers begin anew with another feed, so that an id of one that is gone
means nothing. Used by the feeds of the admin API (`admin/events`) and of tenants (`events/tenant_feeds`).
"""

from __future__ import annotations

import re

_ID = re.compile(r"([0-9a-f]{8})-([0-9]{1,15})")


def event_id(feed: str, number: int) -> str:
    """Return the id of an event; `feed` has eight hexadecimal digits."""
    return f"{feed}-{number}"


def number_in(feed: str, text: str) -> int | None:
    """Return the number of the event of this id; None: it is none of the feed's, or no id."""
    known = _ID.fullmatch(text)
    return int(known[2]) if known is not None and known[1] == feed else None
