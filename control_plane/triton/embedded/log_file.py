"""Triton's log: appended to over all lives of one state folder, rotated between them (during one, by guardian.py)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO

from control_plane.triton.embedded.guardian import ROTATE_AT_BYTES

_TAIL_LINES = 15
_TAIL_BYTES = 4096
"""A message about an end must fit a terminal and a log record."""

_MOST_READ_BYTES = 256 * 2**10
"""Of what was written during a load: what matters most stands at its end."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """The log of one life: `path` from the byte `start` on."""

    path: Path
    start: int

    def tail(self) -> str:
        """The last lines that this life wrote, at most 15 and at most 4 KiB."""
        try:
            text = self._read(self.start, _TAIL_BYTES).decode(errors="replace")
        except OSError as exc:
            return f"(unreadable: {exc.strerror})"
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def end(self) -> int:
        """Where the next byte will be, for `since`."""
        try:
            return self.path.stat().st_size
        except OSError:
            return self.start

    def since(self, position: int) -> bytes:
        """The last that was written from there on, 256 KiB at most; all of it where the file has been cut since (guardian.py)."""
        try:
            return self._read(position, _MOST_READ_BYTES)
        except OSError:
            return b""

    def _read(self, position: int, most: int) -> bytes:
        with self.path.open("rb") as log:
            end = log.seek(0, 2)
            log.seek(max(position if position <= end else 0, end - most))
            return log.read(most)


def open_log(path: Path) -> tuple[LogFile, IO[bytes]]:
    """Begin a life's log: the file to hand to the process (the caller closes it) and where to read it again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > ROTATE_AT_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    log = path.open("ab")
    return LogFile(path, log.seek(0, 2)), log
