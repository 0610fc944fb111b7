"""Refusal by a busy model that holds for equal requests, too, while the model is as busy.

`admission/permit` makes one when a request would be answered too late; `inference/caching/verbatim_cache` asks it before it
refuses the next of the kind unparsed.
"""

from __future__ import annotations

from dataclasses import replace

from control_plane.admission.domain.fair_queue import Ticket
from control_plane.admission.domain.patience_lanes import lane_of
from control_plane.admission.model_slots import ModelSlots


class StandingRefusal:
    """Refusal of one request to a busy model, and of those that come later with as much time and at the same cost."""

    __slots__ = ("_model", "_slots", "_ticket", "_timeout_s")

    def __init__(self, slots: ModelSlots, model: str, ticket: Ticket, timeout_s: float) -> None:
        self._slots = slots
        self._model = model
        self._ticket = ticket
        self._timeout_s = timeout_s

    def __call__(self, less_s: float = 0.0) -> bool:
        """Whether such a request that has `less_s` less time (negative: more) would be refused now."""
        limiter = self._slots.models.get(self._model)
        if limiter is None:
            return False
        now_s, timeout_s = self._slots.now_s(), self._timeout_s - less_s
        return limiter.would_refuse(replace(self._ticket, lane=lane_of(timeout_s), came_s=now_s), now_s + timeout_s)
