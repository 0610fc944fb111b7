"""Levenshtein's edit distance, a column of the table at a time in the bits of one integer.

Source: Hyyrö, "A bit-vector algorithm for computing Levenshtein and Damerau edit distances" (2003), after Myers (1999).
Pure; called by `rollout/domain/agreement`.
"""

from __future__ import annotations


def edit_distance(one: str, other: str) -> int:
    """Return how many characters have to be put in, left out or replaced to make one text of the other."""
    if not one or not other:
        return len(one) + len(other)
    places: dict[str, int] = {}
    for number, character in enumerate(one):
        places[character] = places.get(character, 0) | 1 << number
    whole, last, distance = (1 << len(one)) - 1, 1 << (len(one) - 1), len(one)
    # Bit i: the cell of row i is one more (up), or one less (down), than the cell above it.
    up, down = whole, 0
    for character in other:
        equal = places.get(character, 0)
        vertical = equal | down
        horizontal = (((equal & up) + up) ^ up) | equal
        right_up, right_down = down | (~(horizontal | up) & whole), up & horizontal
        distance += bool(right_up & last) - bool(right_down & last)
        right_up, right_down = right_up << 1 | 1, right_down << 1
        up, down = (right_down | ~(vertical | right_up)) & whole, right_up & vertical & whole
    return distance
