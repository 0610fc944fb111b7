"""Log file of the embedded Triton: all starts of one state folder append to it. Rotated at a start, and by
guardian.py in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO

from control_plane.triton.embedded.guardian import ROTATE_AT_BYTES

_TAIL_LINES = 15
_TAIL_BYTES = 4096
"""Most bytes of a tail: it must fit a terminal and a log record."""

_MAX_READ_BYTES = 256 * 2**10
"""Most bytes that are read of what was written during a load, from its end, where the reason of a
failure is.
"""


@dataclass(frozen=True, slots=True)
class LogFile:
    """Log of one Triton process: the file from byte `start` on."""

    path: Path
    start: int

    def tail(self) -> str:
        """Return the last lines that this process wrote, at most 15 and at most 4 KiB."""
        try:
            text = self._read(self.start, _TAIL_BYTES).decode(errors="replace")
        except OSError as exc:
            return f"(unreadable: {exc.strerror})"
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def end(self) -> int:
        """Return the present end of the file, a position for `since`."""
        try:
            return self.path.stat().st_size
        except OSError:
            return self.start

    def since(self, position: int) -> bytes:
        """Return what was written from a position on, the last 256 KiB at most; all of the file if
        guardian.py has truncated it since.
        """
        try:
            return self._read(position, _MAX_READ_BYTES)
        except OSError:
            return b""

    def _read(self, position: int, most: int) -> bytes:
        with self.path.open("rb") as log:
            end = log.seek(0, 2)
            log.seek(max(position if position <= end else 0, end - most))
            return log.read(most)


def open_log(path: Path) -> tuple[LogFile, IO[bytes]]:
    """Open the log for a new process: return it for reading, and the file to pass to the process, which the
    caller closes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > ROTATE_AT_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    log = path.open("ab")
    return LogFile(path, log.seek(0, 2)), log
