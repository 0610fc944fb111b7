"""Fingerprint board of a Triton into which others may load, too, unless it was seen to be locked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from control_plane.core.fingerprint import Fingerprint
from control_plane.models.ports import FingerprintBoard


class LockedBoard:
    """Fingerprint board that publishes every model as unknown while `is_locked` is false."""

    def __init__(self, board: FingerprintBoard) -> None:
        self._board = board
        self.is_locked = False

    def lock(self, is_locked: bool) -> None:
        """Note whether the Triton that has just been attached to is locked; of one before nothing is known any more."""
        self.is_locked = is_locked

    async def publish(self, changes: Mapping[str, Fingerprint | None]) -> None:
        await self._board.publish(changes if self.is_locked else dict.fromkeys(changes))

    async def make_unknown(self, models: Iterable[str]) -> None:
        await self._board.make_unknown(models)

    async def forget(self, models: Iterable[str]) -> None:
        await self._board.forget(models)
