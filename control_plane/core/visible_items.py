"""Pages of a list whose reader may see only some of its items; used for the jobs and batches that a key's scopes allow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

_PAGE = 1000
"""Items that are read at a time once a page had some that the reader may not see: the store serves others in between."""


class Listed(Protocol):
    """Item of a list, with the id by which the next page begins."""

    @property
    def id(self) -> str: ...


ItemT = TypeVar("ItemT", bound=Listed)


async def visible_items(
    read: Callable[[str, int], Awaitable[list[ItemT]]],
    is_visible: Callable[[ItemT], bool],
    *,
    after: str,
    limit: int,
    at_once: int = _PAGE,
) -> list[ItemT]:
    """Return the first `limit` visible items behind the one with the id `after` (empty: from the first on).

    `read` takes such an id and a number, `at_once` at most, and returns that many of all items, fewer at the end.
    """
    found: list[ItemT] = []
    page_size = min(limit, at_once)
    while len(found) < limit:
        page = await read(after, page_size)
        found += filter(is_visible, page)
        if len(page) < page_size:
            break
        after, page_size = page[-1].id, at_once
    return found[:limit]
