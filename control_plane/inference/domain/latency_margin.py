"""How well a model's answers keep to what is expected of them, for requests with a latency budget.

An expectation is a mean, and half of all answers take longer. So it is multiplied by a margin that is learned: nine of
ten requests are answered sooner. Requests that go to a faster model count as such, too, so the margin shrinks while it
keeps requests away; what made answers late may be over. Pure; called by `inference/routes/budget_dial`.
"""

from __future__ import annotations

_LATE = 0.1
"""Part of the requests that may take longer than expected times the margin."""
_UP = 0.05
_DOWN = _UP * _LATE / (1 - _LATE)
"""Parts by which an answer that was late raises the margin, and one that was not lowers it: it stays where `_LATE` are late."""
_LEAST, _MOST = 0.25, 16.0


class LatencyMargin:
    """Margin of one model: its expectations and what came of them."""

    def __init__(self) -> None:
        self._margin = 1.0

    def needed_s(self, expected_s: float) -> float:
        """Return the seconds in which nine of ten answers come that are expected in `expected_s`."""
        return expected_s * self._margin

    def fits(self, expected_s: float, budget_s: float) -> bool:
        """Whether an answer that is expected in `expected_s` on average (0: nothing is known) should come within a budget."""
        if self.needed_s(expected_s) <= budget_s:
            return True
        if self._margin > 1.0:
            self._margin = max(1.0, self._margin * (1 - _DOWN))
        return False

    def answered(self, expected_s: float, took_s: float) -> None:
        """Note an answer that was expected in `expected_s`."""
        if expected_s > 0.0:
            step = _UP if took_s > self.needed_s(expected_s) else -_DOWN
            self._margin = min(max(self._margin * (1 + step), _LEAST), _MOST)
