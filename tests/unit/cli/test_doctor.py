from __future__ import annotations

import pytest

from control_plane.cli.doctor import Verdict, _gpu
from control_plane.models.adapters.profile import NO_DEVICE, Profile


@pytest.mark.parametrize(
    ("profile", "verdict", "found"),
    [
        pytest.param(Profile("", NO_DEVICE), Verdict.OK, "none: models run on the CPU", id="none there"),
        pytest.param(Profile("gpu", "torch can use the GPU"), Verdict.OK, "configs/gpu.pbtxt: torch can use the GPU", id="used"),
        pytest.param(Profile("", "nothing computes on it"), Verdict.NOTE, "on the CPU: nothing computes on it", id="not used"),
    ],
)
def test_what_a_gpu_is_used_for_and_why(profile: Profile, verdict: Verdict, found: str) -> None:
    check = _gpu(profile)
    assert check.verdict is verdict
    assert found in check.found
    assert bool(check.advice) == (verdict is Verdict.NOTE)
