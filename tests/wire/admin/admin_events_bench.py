"""Events as a client of the admin API's stream reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Parse a stream as a browser's EventSource does, as far as the fields that are used here."""
    fields: dict[str, Any] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            yield fields | {"data": json.loads(fields["data"])}
            fields = {}
        else:
            fields = {}
