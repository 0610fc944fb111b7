from __future__ import annotations

from dataclasses import dataclass

import pytest

from control_plane.core.visible_items import visible_items


@dataclass(frozen=True)
class Item:
    number: int

    @property
    def id(self) -> str:
        return str(self.number)


@pytest.mark.parametrize(
    ("after", "limit", "expected"),
    [
        pytest.param("", 3, [0, 7, 14], id="from the first on"),
        pytest.param("7", 2, [14, 21], id="behind another"),
        pytest.param("4991", 5, [4998], id="to the end"),
        pytest.param("4998", 5, [], id="behind the last"),
    ],
)
async def test_pages_are_full_however_many_items_are_hidden_between(after: str, limit: int, expected: list[int]) -> None:
    items, reads = [Item(number) for number in range(5000)], list[int]()

    async def read(after: str, limit: int) -> list[Item]:
        reads.append(limit)
        first = int(after) + 1 if after else 0
        return items[first : first + limit]

    found = await visible_items(read, lambda item: item.number % 7 == 0, after=after, limit=limit)
    assert [item.number for item in found] == expected
    assert reads[0] == limit
    assert len(reads) <= 2


async def test_few_are_read_at_a_time_where_many_would_hold_up_others() -> None:
    items, reads = [Item(number) for number in range(250)], list[int]()

    async def read(after: str, limit: int) -> list[Item]:
        reads.append(limit)
        first = int(after) + 1 if after else 0
        return items[first : first + limit]

    assert await visible_items(read, lambda item: True, after="", limit=230, at_once=100) == items[:230]
    assert reads == [100, 100, 100]
