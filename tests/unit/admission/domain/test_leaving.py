"""When so many callers leave that Triton must be given no more than keeps it busy."""

from __future__ import annotations

import pytest

from control_plane.admission.domain.leaving import LeavingCallers


def after(*ended: tuple[float, bool]) -> LeavingCallers:
    leaving = LeavingCallers()
    for cost, has_left in ended:
        leaving.ended(cost, has_left=has_left)
    return leaving


STAYED, LEFT = (1.0, False), (1.0, True)


@pytest.mark.parametrize(
    ("ended", "are_many"),
    [
        pytest.param([], False, id="nobody"),
        pytest.param([STAYED] * 100 + [LEFT], False, id="one among many"),
        pytest.param([STAYED] * 100 + [LEFT] * 2, False, id="two of them"),
        pytest.param([STAYED] * 100 + [LEFT] * 3, True, id="three in a row"),
        pytest.param([STAYED, LEFT] * 10, True, id="every second"),
        pytest.param(([STAYED] * 49 + [LEFT]) * 10, False, id="every fiftieth"),
        pytest.param([LEFT] * 50 + [STAYED] * 60, False, id="they have been"),
        pytest.param([STAYED] * 100 + [(50.0, True)], True, id="one whose work is that of many"),
        pytest.param([(50.0, False)] * 100 + [LEFT] * 3, False, id="three whose work is next to none"),
    ],
)
def test_when_they_are_many(ended: list[tuple[float, bool]], are_many: bool) -> None:
    assert after(*ended).are_many is are_many
