"""Relay of the only Triton's state to the workers, which have connections of their own to it.

Where there is a fleet, `workers/parent/fleet_publisher` is in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from control_plane.models.fingerprints import Fingerprints
from control_plane.triton.ports import Upstream
from control_plane.workers.messages import ToWorker
from control_plane.workers.messages.to_workers import UnderRepair, UpstreamDown, UpstreamSilence, UpstreamUp


class UpstreamRelay:
    """Relay of one Triton's state: a `triton/server_state.ServerObserver` that tells every worker, now and when it
    starts."""

    def __init__(self, tell: Callable[[ToWorker], None], fingerprints: Fingerprints) -> None:
        """`tell` sends a message to all workers."""
        self._tell = tell
        self._fingerprints = fingerprints
        self._state: UpstreamUp | UpstreamDown = UpstreamDown("Triton is starting")
        self._is_silent = False
        self._under_repair = UnderRepair({})

    def snapshot(self) -> list[ToWorker]:
        """The messages for a worker that starts."""
        silence = [UpstreamSilence(is_silent=True)] if self._is_silent else []
        repairs = [self._under_repair] if self._under_repair.ready_s else []
        return [self._state, *silence, *repairs]

    def up(self, upstream: Upstream, server: str = "") -> None:
        self._tell_state(UpstreamUp(upstream.endpoints))

    def down(self, reason: str, server: str = "") -> None:
        # What one Triton had loaded says nothing of the next.
        self._fingerprints.forget_all()
        self._tell_state(UpstreamDown(reason))

    def repairing(self, ready_s: Mapping[str, float]) -> None:
        """Tell workers which models are being loaded anew."""
        self._under_repair = UnderRepair(dict(ready_s))
        self._tell(self._under_repair)

    def silence_changed(self, is_silent: bool, server: str = "") -> None:
        self._is_silent = is_silent
        self._tell(UpstreamSilence(is_silent))

    def left(self, server: str) -> None:
        """Nothing to do: `down` was called before."""

    def _tell_state(self, state: UpstreamUp | UpstreamDown) -> None:
        # One that has come up anew answers, and one that is down is more than silent.
        self._state, self._is_silent = state, False
        self._tell(state)
