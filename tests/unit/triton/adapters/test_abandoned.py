from __future__ import annotations

import pytest

from control_plane.triton.adapters.abandoned import patience_s, told_after_s


@pytest.mark.parametrize(
    ("waited_s", "expected_s", "patience"),
    [
        pytest.param(0.1, 0.0, 1.0, id="a second at least"),
        pytest.param(5.0, 0.0, 5.0, id="as long again"),
        pytest.param(0.1, 8.0, 15.9, id="behind a queue: twice what that takes, in all"),
        pytest.param(20.0, 8.0, 20.0, id="longer than expected"),
    ],
)
def test_patience(waited_s: float, expected_s: float, patience: float) -> None:
    assert patience_s(waited_s, expected_s) == pytest.approx(patience)


@pytest.mark.parametrize(
    ("waited_s", "expected_s", "after_s"),
    [
        pytest.param(0.1, 0.0, 1.0, id="one that ends by itself is not cancelled"),
        pytest.param(0.1, 1.0, 1.9, id="nor one behind a queue"),
        pytest.param(0.1, 8.0, 3.0, id="one that takes long is"),
        pytest.param(20.0, 8.0, 20.0, id="as long again"),
    ],
)
def test_when_triton_is_told(waited_s: float, expected_s: float, after_s: float) -> None:
    assert told_after_s(waited_s, expected_s) == pytest.approx(after_s)
