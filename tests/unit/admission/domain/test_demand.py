from __future__ import annotations

from control_plane.admission.domain.demand import Exchange, exchange_of


def test_demands_are_summed_by_tenant() -> None:
    told = [{"a": 1.5, "b": 2.0}, {}, {"a": 0.25}]
    assert exchange_of(told) == Exchange({"a": 1.75, "b": 2.0}, 3)
    assert told[0] == {"a": 1.5, "b": 2.0}


def test_nobody_asks_for_nothing() -> None:
    assert exchange_of([]) == Exchange({}, 0)
