"""Rendering of lists that may be long, in steps: other requests have their turns in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pydantic import BaseModel

_AT_ONCE = 100
"""Views that are made and rendered in one turn of the loop: each takes some ten microseconds."""


async def rendered(views: Iterable[BaseModel]) -> str:
    """Render views as JSON, with commas between them, a hundred at a time."""
    parts = list[str]()
    for number, view in enumerate(views):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
        parts.append(view.model_dump_json())
    return ",".join(parts)
