from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from control_plane.rollout.domain.edit_distance import edit_distance

TEXTS = st.text("abcé ", max_size=90)


def by_the_table(one: str, other: str) -> int:
    """Wagner and Fischer's table, row by row."""
    above = list(range(len(other) + 1))
    for row, mine in enumerate(one, 1):
        cells = [row]
        for column, theirs in enumerate(other, 1):
            cells.append(min(cells[-1] + 1, above[column] + 1, above[column - 1] + (mine != theirs)))
        above = cells
    return above[-1]


@given(TEXTS, TEXTS)
def test_it_is_what_the_whole_table_says(one: str, other: str) -> None:
    assert edit_distance(one, other) == by_the_table(one, other)


def test_known_ones() -> None:
    assert (edit_distance("kitten", "sitting"), edit_distance("", "abc"), edit_distance("abc", "")) == (3, 3, 3)
    assert edit_distance("a" * 2000, "b" * 2000) == 2000
