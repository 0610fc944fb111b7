from __future__ import annotations

import pytest

from control_plane.core.algorithms.steps import Steps, finish


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
