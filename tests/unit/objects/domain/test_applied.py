from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.objects.domain.applied import merged

FIELDS = st.dictionaries(st.sampled_from("abc"), st.recursive(st.integers(0, 3), lambda of: st.dictionaries(st.sampled_from("xy"), of)))


@pytest.mark.parametrize(
    ("live", "last", "desired", "expected"),
    [
        pytest.param({"a": 1, "b": 2}, {}, {"a": 3}, {"a": 3, "b": 2}, id="others' fields stay"),
        pytest.param({"a": 1, "b": 2}, {"b": 2}, {"a": 1}, {"a": 1}, id="a field that is desired no more gets its default"),
        pytest.param({"a": 1, "b": 9}, {"b": 2}, {"b": 2}, {"a": 1, "b": 2}, id="drift is undone"),
        pytest.param({"c": {"x": 1, "y": 2}}, {}, {"c": {"x": 3}}, {"c": {"x": 3, "y": 2}}, id="within a field"),
        pytest.param({"c": {"x": 1, "y": 2}}, {"c": {"x": 1}}, {}, {"c": {"y": 2}}, id="of a field that is gone, only what was applied"),
        pytest.param({"c": {"x": 1, "y": 2}}, {"c": {"x": 1, "y": 2}}, {"c": {"x": 1}}, {"c": {"x": 1}}, id="removed within a field"),
        pytest.param({"l": [1, 2]}, {"l": [1, 2]}, {"l": [3]}, {"l": [3]}, id="a list is one value"),
        pytest.param({"a": 1}, {"a": 1}, {"a": None}, {"a": None}, id="null is a value"),
        pytest.param({"a": 1}, {"a": {"x": 1}}, {"a": {"x": 2}}, {"a": {"x": 2}}, id="what is no object there becomes one"),
    ],
)
def test_three_ways(live: dict[str, Any], last: dict[str, Any], desired: dict[str, Any], expected: dict[str, Any]) -> None:
    assert merged(live, last, desired) == expected


@given(live=FIELDS, last=FIELDS, desired=FIELDS)
def test_a_second_time_changes_nothing(live: dict[str, Any], last: dict[str, Any], desired: dict[str, Any]) -> None:
    once = merged(live, last, desired)
    assert merged(once, desired, desired) == once
