"""Share of a model's work that was done for callers who had left; pure. `admission/concurrency_limiter` asks whether it
is so much that Triton must be given no more than keeps it busy.

Triton computes on for whoever left, mostly. Where many leave, their requests had better wait here, where they cost
nothing once their callers are gone. One among many costs next to nothing, and to hold all others back for it would.
"""

from __future__ import annotations

# Weight of the newest request, as in `admission/domain/deadline`.
_NEWEST = 0.05
# With these weights the third leaver in a row is too many, and each one is where every tenth leaves.
_MANY = 0.1


class LeavingCallers:
    """Exponentially weighted share of the work of one model whose callers had left before it was done."""

    __slots__ = ("_left", "_newest", "_work")

    def __init__(self, newest: float = _NEWEST) -> None:
        """`newest` is the weight of the newest request."""
        self._newest = newest
        self._left = 0.0
        self._work = 0.0

    def ended(self, cost: float, *, has_left: bool) -> None:
        """Note that Triton has ended a request of `cost` units, whose caller had left or not."""
        if not self._work:
            self._work = cost
        self._work += self._newest * (cost - self._work)
        self._left += self._newest * ((cost if has_left else 0.0) - self._left)

    @property
    def part(self) -> float:
        """Part of the work that was done for nobody."""
        return self._left / self._work if self._work else 0.0

    @property
    def are_many(self) -> bool:
        return self._left > _MANY * self._work
