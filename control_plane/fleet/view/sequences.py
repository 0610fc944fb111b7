"""Which copy holds the state of each sequence: its requests go there and nowhere else until it ends, or lies idle.

Triton keeps that state in the instance that saw the sequence's START (server 24.10, sequence batcher).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.infer_call import InferCall
from control_plane.fleet.domain.fleet import Copy

_IDLE_S = 60.0
"""Triton's own default is one second (`max_sequence_idle_microseconds`); models that need it set more, and few more than that."""

_SWEEP_S = 1.0


@dataclass(slots=True, eq=False)
class _Sequence:
    server: str
    copy: Copy
    last_s: float


class Sequences:
    """The sequences under way that one process knows, each with the copy that holds its state."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._held: dict[tuple[str, str], _Sequence] = {}
        self._sweep_at_s = 0.0

    def held_at(self, call: InferCall) -> tuple[str, Copy] | None:
        """The server and copy that a request belongs to; None: to none yet."""
        self._sweep()
        key = (call.model_name, call.sequence_id)
        if call.starts_sequence:
            self._end(key)
        held = self._held.get(key)
        return None if held is None else (held.server, held.copy)

    def hold(self, call: InferCall, server: str, copy: Copy) -> None:
        """A request of it goes there."""
        held = self._held.get((call.model_name, call.sequence_id))
        if held is None:
            copy.sequences += 1
            self._held[call.model_name, call.sequence_id] = _Sequence(server, copy, self._now_s())
        else:
            held.last_s = self._now_s()

    def done(self, call: InferCall) -> None:
        """A request of it has been answered."""
        if call.ends_sequence:
            self._end((call.model_name, call.sequence_id))

    def lost(self, call: InferCall) -> UpstreamUnavailable:
        """What to tell of one whose copy is gone; it is forgotten."""
        self._end((call.model_name, call.sequence_id))
        return UpstreamUnavailable(
            f"the server that held sequence '{call.sequence_id}' of model '{call.model_name}' is gone, and the state with it; start it anew"
        )

    def _end(self, key: tuple[str, str]) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            held.copy.sequences -= 1

    def _sweep(self) -> None:
        now_s = self._now_s()
        if now_s >= self._sweep_at_s:
            self._sweep_at_s = now_s + _SWEEP_S
            for key in [key for key, held in self._held.items() if now_s - held.last_s > _IDLE_S]:
                self._end(key)
