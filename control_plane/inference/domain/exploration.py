"""How often a model is asked that seems to exceed the budgets of requests.

Now and then one request goes there all the same, or nothing would be learned of it again, and a first answer that warmed
it up would be believed for good. Pure; called by `inference/routes/budget_dial`.
"""

from __future__ import annotations

from math import inf

_TRIED_AFTER = 25
"""Requests in a row that are kept away before one is let through."""
_FAR = 16.0
"""Times the budget that an answer should take from which on so many more are kept away before one is: each counts for the less.
Counted alike, those of one caller with a tiny budget would have every request of another let through, who is late then."""


class Exploration:
    """Exploration of one model: requests that are kept away from it, and those that try it."""

    def __init__(self) -> None:
        self._kept_away = 0.0

    def admits(self, times_over: float | None) -> bool:
        """Whether a request goes to the model, which should take so many times its budget; None: it should keep to it; infinitely
        many: it is never tried, and its request counts for no other."""
        if times_over == inf:
            return False
        if times_over is not None:
            self._kept_away += min(1.0, _FAR / times_over)
            if self._kept_away <= _TRIED_AFTER:
                return False
        self._kept_away = 0.0
        return True
