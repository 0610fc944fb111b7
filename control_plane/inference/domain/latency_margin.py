"""How well a model's answers keep to what is expected of them, for requests with a latency budget.

An expectation is a mean, and half of all answers take longer. So it is multiplied by a margin that is learned: nine of
ten answers take less. A model that seems too slow is asked all the same now and then, or nothing would be learned of
it again: as often as adds a fiftieth of the budgets to what requests take on average. Pure; called by
`inference/latency_dial`.
"""

from __future__ import annotations

_LATE = 0.1
"""Part of the answers that may take longer than expected times the margin."""
_STEP = 0.05
"""Part by which an answer that was late raises the margin. One that was not lowers it by so much less that it stays where
`_LATE` of the answers are late."""
_LEAST, _MOST = 0.25, 16.0
_TRIED = 0.02
"""Part of the budgets of requests that went to other models which is spent on trying this one."""


class LatencyMargin:
    """Margin of one model: its expectations and what came of them."""

    def __init__(self) -> None:
        self._margin = 1.0
        self._saved_s = 0.0
        """What may be spent on the next try."""

    def needed_s(self, expected_s: float) -> float:
        """Return the seconds in which nine of ten answers come that are expected in `expected_s`."""
        return expected_s * self._margin

    def fits(self, expected_s: float, budget_s: float) -> bool:
        """Whether a request is to go to this model, which should answer it in `expected_s` on average; 0 where nothing is
        known."""
        if self.needed_s(expected_s) <= budget_s:
            return True
        self._saved_s += _TRIED * budget_s
        if self._saved_s < expected_s:
            return False
        self._saved_s = 0.0
        return True

    def answered(self, expected_s: float, took_s: float) -> None:
        """Note an answer that was expected in `expected_s`."""
        if expected_s > 0.0:
            is_late = took_s > self.needed_s(expected_s)
            step = _STEP if is_late else -_STEP * _LATE / (1 - _LATE)
            self._margin = min(max(self._margin * (1 + step), _LEAST), _MOST)
