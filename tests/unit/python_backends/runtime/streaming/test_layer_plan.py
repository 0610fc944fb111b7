"""Which layers stay on a device: never more than the budget, as many as it allows, and evenly among the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.streaming.layer_plan import MIB, plan_layers

SIZES = st.lists(st.integers(1, 100), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("budget", "streamed", "held"),
    [
        pytest.param(100, [], 90, id="all of it"),
        pytest.param(90, [], 90, id="just all of it"),
        pytest.param(89, [0, 2, 5], 80 - 30 + 30, id="a byte less"),
        pytest.param(60, [0, 1, 3, 4, 6], 60, id="some"),
        pytest.param(59, [0, 1, 2, 4, 5, 6], 50, id="not quite as many"),
        pytest.param(30, [0, 1, 2, 3, 4, 5, 6, 7], 30, id="none"),
    ],
)
def test_as_many_layers_stay_as_the_budget_allows(budget: int, streamed: list[int], held: int) -> None:
    plan = plan_layers([10] * 8, 10, budget)

    assert ([*plan.streamed], plan.held_bytes, plan.buffer_bytes) == (streamed, held, 10 if streamed else 0)


def test_a_budget_that_is_too_small_says_what_would_do() -> None:
    with pytest.raises(ConfigError, match=r"cannot be streamed in 23 MiB: parameter 'weight_memory_mb' must be at least 24, "):
        plan_layers([10 * MIB] * 8, 4 * MIB - 1, 23 * MIB)
    assert len(plan_layers([10 * MIB] * 8, 4 * MIB - 1, 24 * MIB).streamed) == 8
    with pytest.raises(ConfigError, match="must be at least 14, "):  # less than two buffers of its only layer
        plan_layers([10 * MIB], 4 * MIB, 13 * MIB)


@given(SIZES, st.integers(0, 100), st.integers(0, 1500))
def test_the_bound_holds_whatever_the_sizes_are(sizes: list[int], others: int, budget: int) -> None:
    try:
        plan = plan_layers(sizes, others, budget)
    except ConfigError:
        assert budget < min(others + sum(sizes), others + 2 * max(sizes))
        return
    stays = sum(size for number, size in enumerate(sizes) if number not in plan.streamed)
    assert plan.held_bytes == others + stays + 2 * plan.buffer_bytes <= budget
    assert all(sizes[number] <= plan.buffer_bytes for number in plan.streamed)
    assert len(plan.streamed) != 1  # which would be copied into its second buffer beside its first
    assert sorted({*plan.streamed}) == [*plan.streamed]


@given(st.integers(3, 80), st.integers(0, 77))
def test_layers_that_stay_are_evenly_apart(layers: int, more: int) -> None:
    plan = plan_layers([10] * layers, 0, 10 * min(2 + more, layers - 1))

    following = [*plan.streamed[1:], plan.streamed[0] + layers]
    gaps = [after - before for before, after in zip(plan.streamed, following, strict=True)]
    assert max(gaps) - min(gaps) <= 1
