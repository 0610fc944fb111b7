"""What tests of rollouts share."""

from __future__ import annotations

import pytest

from control_plane.objects.domain.rollout import Rollout
from control_plane.rollout.domain.evidence import Evidence


@pytest.fixture
def known_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is slow is known from the beginning, so that the next model's requests are samples at once."""
    begin = Evidence.__init__

    def begin_with_thresholds(self: Evidence, rollout: Rollout) -> None:
        begin(self, rollout)
        self.median_s = self.p99_s = 1.0

    monkeypatch.setattr(Evidence, "__init__", begin_with_thresholds)
