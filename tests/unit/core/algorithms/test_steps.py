from __future__ import annotations

import pytest

from control_plane.core.algorithms.steps import Steps, finish, join_steps


def steps(pauses: int) -> Steps[str]:
    for _ in range(pauses):
        yield
    return "result"


@pytest.mark.parametrize("pauses", [0, 1, 100])
def test_finish_runs_to_the_end(pauses: int) -> None:
    assert finish(steps(pauses)) == "result"


def test_finish_passes_errors_on() -> None:
    def failing() -> Steps[None]:
        yield
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        finish(failing())


@pytest.mark.parametrize(("sizes", "pauses"), [((), 0), ((0, 3), 0), ((2**20, 1), 0), ((3, 3 * 2**20 + 1, 5), 3)])
def test_parts_are_joined_some_at_a_time(sizes: tuple[int, ...], pauses: int) -> None:
    parts = [bytes([number]) * size for number, size in enumerate(sizes)]
    assert finish(join_steps(*parts)) == b"".join(parts)
    assert sum(1 for _ in join_steps(*map(memoryview, parts))) == pauses
