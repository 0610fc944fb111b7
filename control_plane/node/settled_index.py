"""Cache of a node's Triton's index: read anew while anything is on its way, and otherwise every two seconds.

Only the node loads and unloads there, so a settled index stays as it is, and every gateway asks for it twice a
second. Triton reads all models' folders each time (24.10), and a thousand lines are as costly to send.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from control_plane.core.model import ModelState, ModelVersion
from control_plane.node.domain.messages import Line

READ_EVERY_S = 2.0
"""Time for which a settled index is believed: what others have loaded, where the lock is missing, shows then."""

_SETTLED = frozenset((ModelState.READY, ModelState.UNAVAILABLE))


class SettledIndex:
    """Index of one Triton with the loads that it was asked for just now, in numbered editions."""

    def __init__(self, read: Callable[[], Awaitable[list[ModelVersion]]], *, now_s: Callable[[], float]) -> None:
        """`read` asks Triton. Raises ControlPlaneError."""
        self._read = read
        self._now_s = now_s
        self._loading: Counter[str] = Counter()
        """Models that Triton has been asked to load and that may not be in its index yet."""
        self._under_way = 0
        """Loads and unloads that have not ended."""
        self._changes = 0
        """Beginnings and ends of these, and lives of Triton."""
        self._lines: list[Line] = []
        self._edition = 0
        self._settled_until_s = 0.0
        self._asked = self._newest = 0
        """Numbers of the reads that were begun, and of the latest of those that have ended."""

    async def look(self) -> tuple[int, list[Line]]:
        """Return the index, and the number of its edition: another one where anything in it is different. Raises
        what `read` does."""
        if self._now_s() >= self._settled_until_s:
            changes, loading, asked_s = self._changes, set(self._loading), self._now_s()
            number = self._asked = self._asked + 1
            found = await self._read()
            if number < self._newest:  # what a later read has found is believed, perhaps for a while
                return self._edition, self._lines
            self._newest = number
            there = {line.name for line in found if line.state is not ModelState.UNAVAILABLE}
            begun = [ModelVersion(name, "", ModelState.LOADING, "") for name in sorted(loading - there)]
            lines = [_line(each) for each in (*found, *begun)]
            if lines != self._lines or not self._edition:
                self._lines, self._edition = lines, self._edition + 1
            if changes == self._changes and not self._under_way and all(line.state in _SETTLED for line in found):
                self._settled_until_s = asked_s + READ_EVERY_S
        return self._edition, self._lines

    @contextmanager
    def loading(self, model: str) -> Iterator[None]:
        """Context manager: within the block the model is LOADING in the index, if Triton does not list it yet."""
        self._loading[model] += 1
        try:
            with self.changing():
                yield
        finally:
            self._loading -= Counter((model,))

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Context manager: within the block the index may change at any time."""
        self._under_way += 1
        self.changed()
        try:
            yield
        finally:
            self._under_way -= 1
            self.changed()

    def changed(self) -> None:
        """Note that the index may be another one now."""
        self._changes += 1
        self._settled_until_s = 0.0


def _line(line: ModelVersion) -> Line:
    return line.name, line.version, line.state, line.reason
