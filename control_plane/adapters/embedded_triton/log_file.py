"""Triton's log: appended to over all lives of one state folder, rotated between them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO

_ROTATE_AT_BYTES = 10 * 2**20
_TAIL_LINES = 15
_TAIL_BYTES = 4096
"""A message about an end must fit a terminal and a log record."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """The log of one life: `path` from the byte `start` on."""

    path: Path
    start: int

    def tail(self) -> str:
        """The last lines that this life wrote, at most 15 and at most 4 KiB."""
        try:
            with self.path.open("rb") as log:
                end = log.seek(0, 2)
                log.seek(max(self.start, end - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError as exc:
            return f"(unreadable: {exc.strerror})"
        return "\n".join(text.splitlines()[-_TAIL_LINES:])


def open_log(path: Path) -> tuple[LogFile, IO[bytes]]:
    """Begin a life's log: the file to hand to the process (the caller closes it) and where to read it again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > _ROTATE_AT_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    log = path.open("ab")
    return LogFile(path, log.seek(0, 2)), log
