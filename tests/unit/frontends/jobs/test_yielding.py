from __future__ import annotations

import pytest

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, UpstreamUnavailable
from control_plane.frontends.jobs.yielding import Yielding
from tests.fakes.jobs import job

IN_VAIN = DeadlineExceeded("late")


@pytest.mark.parametrize(
    ("attempts", "failed", "after_s", "is_alone", "expected"),
    [
        pytest.param(1, None, 0.0, True, True, id="a-first-attempt-for-callers-who-may-come"),
        pytest.param(1, None, 0.0, False, True, id="a-first-attempt-for-callers-who-are-there"),
        pytest.param(2, None, 0.0, True, False, id="no-second-one"),
        pytest.param(2, None, 0.0, False, False, id="nor-beside-callers"),
        pytest.param(1, IN_VAIN, 0.0, True, False, id="one-was-in-vain"),
        pytest.param(1, IN_VAIN, 0.0, False, True, id="but-callers-are-there"),
        pytest.param(1, IN_VAIN, 601.0, True, True, id="long-ago"),
        pytest.param(1, UpstreamUnavailable("gone"), 0.0, True, True, id="it-failed-for-another-reason"),
    ],
)
def test_what_yields(attempts: int, failed: ControlPlaneError | None, after_s: float, is_alone: bool, expected: bool) -> None:
    now_s = 0.0
    policy = Yielding(lambda: is_alone, now_s=lambda: now_s)
    if failed is not None:
        policy.failed(failed)
    now_s += after_s
    assert policy.yields(job(attempts=attempts)) is expected
