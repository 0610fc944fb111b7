"""Back-off between revivals of a model whose Python stub dies again and again; pure decisions.

Used by `fleet/loading/dead_stubs` for each model on each server, and by `models/revivals` for one Triton.
"""

from __future__ import annotations

from collections.abc import Hashable

from control_plane.core.algorithms.backoff import RestartLimits, count_failures, restart_delay_s

_LIMITS = RestartLimits(first_delay_s=5.0, max_delay_s=300.0, settled_after_s=600.0)
"""Each revival leaves a little behind in Triton, and a model that crashes as soon as it is loaded would be loaded
for ever. A model is revived at once the first time."""
_EXPLAINED_S = 10.0
"""Time within which a death is noticed whose cause is known already: three answers of an attached Triton's tell it."""
_MOST_EXPLAINED = 20
"""Most deaths of a model that are explained within `_LIMITS.settled_after_s`: a client that always finds another poison is
no reason to load for ever."""


class RevivalBackoff:
    """Exponential back-off of revivals, by model."""

    def __init__(self) -> None:
        self._begun: dict[Hashable, tuple[float, int]] = {}
        """Model -> when its last revival began, and how many there were in a row."""
        self._explained: dict[Hashable, tuple[float, int]] = {}
        """Model -> since when deaths have been explained, and how many."""
        self._excused: dict[Hashable, float] = {}
        """Model -> until when a revival does not count, as its death has been explained before."""

    def delay_s(self, model: Hashable, now_s: float) -> float:
        """Return the seconds from now until the model may be revived; 0 if it may be now."""
        if model not in self._begun:
            return 0.0
        begun_s, in_a_row = self._begun[model]
        return max(0.0, begun_s + restart_delay_s(in_a_row, limits=_LIMITS) - now_s)

    def begin(self, model: Hashable, now_s: float) -> None:
        """Note that a revival of the model begins."""
        begun_s, in_a_row = self._begun.get(model, (float("-inf"), 0))
        if now_s < self._excused.pop(model, now_s):
            return
        self._begun[model] = now_s, count_failures(in_a_row, life_s=now_s - begun_s, limits=_LIMITS)

    def explain(self, model: Hashable, now_s: float) -> bool:
        """Note that one death of the model has a known cause, which does not come back: its revival does not count, be it
        the last one or the next. False if too many have been explained, so that this one counts."""
        since_s, explained = self._explained.get(model, (now_s, 0))
        if now_s - since_s > _LIMITS.settled_after_s:
            since_s, explained = now_s, 0
        self._explained[model] = since_s, explained + 1
        if explained >= _MOST_EXPLAINED:
            return False
        begun_s, in_a_row = self._begun.pop(model, (now_s, 0))
        if in_a_row > 1:
            self._begun[model] = min(begun_s, now_s), in_a_row - 1
        elif not in_a_row:
            self._excused[model] = now_s + _EXPLAINED_S
        return True

    def forgive(self, model: Hashable) -> None:
        """Forget the model's revivals: somebody has looked after it."""
        self._begun.pop(model, None)
