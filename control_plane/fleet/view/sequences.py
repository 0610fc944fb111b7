"""Session affinity for sequences: which replica holds the state of each, so that its requests go there until
it ends or lies idle.

Triton keeps that state in the instance that saw the sequence's START (server 24.10, sequence batcher), and
nowhere else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.infer_call import InferCall
from control_plane.fleet.domain.fleet import Replica

_IDLE_S = 60.0
"""Idle time after which a sequence is forgotten. Triton's own default is one second
(`max_sequence_idle_microseconds`); models that need it set more, and few set more than this."""

MAX_HELD = 100_000
"""Most sequences that are remembered, at some 400 bytes each; beyond, the one that has lain idle for longest is forgotten,
whose next request then goes where all gateways would send it."""

_AT_ONCE = 1000
"""Most sequences that are forgotten in one turn of the loop, in less than a millisecond."""


@dataclass(slots=True, eq=False)
class _Sequence:
    """A sequence under way and the replica that holds its state."""

    server: str
    replica: Replica
    last_s: float


class Sequences:
    """Affinity table of the sequences under way that this process knows, each with the replica that holds its
    state."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._held = OrderedDict[tuple[str, str], _Sequence]()
        """(model, id of the sequence) -> the sequence, in the order of their last requests, the latest at the end."""

    def holder_of(self, call: InferCall) -> tuple[str, Replica] | None:
        """Return the server and the replica that hold the state of the request's sequence; None if none does
        yet."""
        self.forget_idle()
        key = (call.model_name, call.sequence_id)
        # START makes Triton discard the old state of the same number: the new sequence may go anywhere.
        if call.starts_sequence:
            self._end(key)
        held = self._held.get(key)
        return None if held is None else (held.server, held.replica)

    def bind(self, call: InferCall, server: str, replica: Replica) -> None:
        """Bind the request's sequence to a replica; a request of a sequence that is already bound keeps it
        from lying idle."""
        key = (call.model_name, call.sequence_id)
        held = self._held.get(key)
        if held is None:
            if len(self._held) >= MAX_HELD:
                self._end(next(iter(self._held)))
            replica.sequences += 1
            held = self._held[key] = _Sequence(server, replica, 0.0)
        held.last_s = self._now_s()
        self._held.move_to_end(key)

    def done(self, call: InferCall) -> None:
        """Note that a request has been answered, which ends the sequence if it was the last one."""
        if call.ends_sequence:
            self._end((call.model_name, call.sequence_id))

    def lost(self, call: InferCall) -> UpstreamUnavailable:
        """Forget a sequence whose replica is gone, and return the error for its caller."""
        self._end((call.model_name, call.sequence_id))
        return UpstreamUnavailable(
            f"the server that held this sequence of model '{call.model_name}' is gone, and the state with it; start it anew"
        )

    def forget_idle(self) -> None:
        """Forget the sequences that lie idle; to be called now and then also while none goes on, since replicas that
        hold any are not unloaded."""
        long_ago_s = self._now_s() - _IDLE_S
        for _ in range(_AT_ONCE):
            key = next(iter(self._held), None)
            if key is None or self._held[key].last_s >= long_ago_s:
                return
            self._end(key)

    def _end(self, key: tuple[str, str]) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            # The count keeps the replica from being evicted while any of its sequences is under way.
            held.replica.sequences -= 1
