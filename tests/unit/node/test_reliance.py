from __future__ import annotations

from math import inf

from control_plane.node.reliance import NodeReliance


def test_the_node_that_answered_longest_ago_counts_until_nothing_of_it_is_known() -> None:
    told: list[float] = []
    reliance = NodeReliance(told.append)
    reliance.relies_until("a", 5.0)
    reliance.relies_until("b", 3.0)
    reliance.relies_until("a", 6.0)
    reliance.relies_until("b", None)
    reliance.relies_until("a", None)
    assert told == [5.0, 3.0, 3.0, 6.0, inf]
