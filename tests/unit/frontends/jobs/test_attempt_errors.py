"""`frontends/jobs/attempt_errors`."""

from __future__ import annotations

import pytest

from control_plane.core.errors import ControlPlaneError, LimitExceeded, Overloaded, UpstreamUnavailable
from control_plane.frontends.jobs.attempt_errors import try_again_after


@pytest.mark.parametrize(
    ("error", "was_computed", "retry_after_s", "is_crowded"),
    [
        (Overloaded("full", retry_after_s=2.0), False, 2.0, True),
        (LimitExceeded("too many", retry_after_s=3.0), False, 3.0, False),
        (UpstreamUnavailable("gone"), False, None, True),
        (UpstreamUnavailable("gone"), True, None, False),
    ],
)
def test_says_when_and_whether_others_would_meet_the_same(
    error: ControlPlaneError, was_computed: bool, retry_after_s: float | None, is_crowded: bool
) -> None:
    again = try_again_after(error, was_computed=was_computed)
    assert (again.was_computed, again.retry_after_s, again.is_crowded) == (was_computed, retry_after_s, is_crowded)
