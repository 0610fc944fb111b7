"""Parser of server-sent events (HTML Living Standard, 9.2.6), as far as the gateway sends them; the command line's clients call it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any


def parsed_events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream's lines: `event`, `data` as JSON, and `id` where there is one. Raises ValueError."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if line and name:
            fields[name] = value.removeprefix(" ")
        elif not line and "data" in fields:
            yield {"event": "message"} | fields | {"data": json.loads(fields["data"])}
            fields = {}
