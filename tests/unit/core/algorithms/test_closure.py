from __future__ import annotations

import pytest

from control_plane.core.algorithms.closure import closure


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        pytest.param({}, {"a"}, id="none"),
        pytest.param({"a": ["b", "c"], "b": ["d"], "c": ["d"]}, {"a", "b", "c", "d"}, id="shared"),
        pytest.param({"a": ["b", "b"]}, {"a", "b"}, id="named twice"),
        pytest.param({"a": ["b"], "b": ["a", "b"]}, {"a", "b"}, id="a cycle"),
        pytest.param({"b": ["a"]}, {"a"}, id="not what needs it"),
    ],
)
def test_it_is_all_that_a_model_needs_each_once(steps: dict[str, list[str]], found: set[str]) -> None:
    names = closure("a", lambda name: steps.get(name, ()))
    assert names[0] == "a"
    assert len(names) == len(found)
    assert set(names) == found


def test_a_chain_without_an_end_is_followed_up_to_a_bound() -> None:
    assert closure("0", lambda name: [str(int(name) + 1)], most=3) == ["0", "1", "2"]
