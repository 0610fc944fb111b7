"""Back-off between revivals of a model whose Python stub dies again and again; pure decisions.

Used by `fleet/loading/dead_stubs` for each model on each server, and by `models/revivals` for one Triton.
"""

from __future__ import annotations

from collections.abc import Hashable

from control_plane.core.backoff import RestartLimits, count_failures, restart_delay_s

_LIMITS = RestartLimits(first_delay_s=5.0, max_delay_s=300.0, settled_after_s=600.0)
"""Each revival leaves a little behind in Triton, and a model that crashes as soon as it is loaded would be loaded
for ever. The first one comes at once."""


class RevivalBackoff:
    """Exponential back-off of revivals, by model."""

    def __init__(self) -> None:
        self._begun: dict[Hashable, tuple[float, int]] = {}
        """Model -> when its last revival began, and how many there were in a row."""

    def delay_s(self, model: Hashable, now_s: float) -> float:
        """Return the seconds from now until the model may be revived; 0 if it may be now."""
        if model not in self._begun:
            return 0.0
        begun_s, in_a_row = self._begun[model]
        return max(0.0, begun_s + restart_delay_s(in_a_row, limits=_LIMITS) - now_s)

    def begin(self, model: Hashable, now_s: float) -> None:
        """Note that a revival of the model begins."""
        begun_s, in_a_row = self._begun.get(model, (float("-inf"), 0))
        self._begun[model] = now_s, count_failures(in_a_row, life_s=now_s - begun_s, limits=_LIMITS)

    def forgive(self, model: Hashable) -> None:
        """Forget the model's revivals: somebody has looked after it."""
        self._begun.pop(model, None)
