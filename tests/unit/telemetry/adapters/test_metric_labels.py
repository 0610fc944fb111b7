from __future__ import annotations

from control_plane.telemetry.adapters.metric_labels import COLLECTIVE, LabelLimit


def shown(limit: LabelLimit, *values: str) -> set[str]:
    return set(limit.shown(values) - COLLECTIVE)


def test_first_come_first_served_and_nobody_is_driven_out() -> None:
    limit = LabelLimit(2)
    assert shown(limit, "b", "c") == {"b", "c"}
    assert shown(limit, "a", "b", "c") == {"b", "c"}


def test_one_that_is_gone_makes_room() -> None:
    limit = LabelLimit(2)
    shown(limit, "b", "c")
    assert shown(limit, "a", "c") == {"a", "c"}


def test_what_is_too_long_is_not_shown() -> None:
    assert shown(LabelLimit(2), "x" * 256, "a") == {"a"}


def test_what_stands_for_many_takes_nobodys_place() -> None:
    assert LabelLimit(1).shown({"a", *COLLECTIVE}) == {"a", *COLLECTIVE}
