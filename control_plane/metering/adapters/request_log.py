"""Request log in a file: a thread appends a JSON line per request; implements `metering/ports.RequestLog`.

Several workers may share the file: each appends whole lines with one write (O_APPEND), which Linux does not
interleave.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from pathlib import Path

from control_plane.core.errors import StartupError
from control_plane.metering.domain.usage import UsageEvent
from control_plane.metering.domain.usage_text import encode_log_line

_log = logging.getLogger(__name__)

PERIOD_S = 0.2
_MAX_WAITING = 100_000
"""Most events that wait for the disk, some 50 MB; further ones are dropped."""
_LINES_PER_WRITE = 1000
_CLOSE_TIMEOUT_S = 2.0
"""Time to write what still waits at a stop; a slower disk must not hold it up, and the daemon thread ends
with the process."""


class RequestLogFile:
    """Appender to the file `path`; opens it anew after it was renamed or removed, as by logrotate."""

    def __init__(self, path: Path) -> None:
        """Open the file; a new one is readable by its owner only. Raises StartupError."""
        self._path = path
        self._waiting: deque[UsageEvent] = deque()
        self._stopping = threading.Event()
        self._fails = False
        self.dropped = 0
        """Lines that could not be written."""
        try:
            self._file = self._open()
        except OSError as exc:
            raise StartupError(f"--request-log {path} cannot be written: {exc.strerror}") from exc
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    def write(self, event: UsageEvent) -> None:
        if len(self._waiting) < _MAX_WAITING:
            self._waiting.append(event)
        else:
            self.dropped += 1

    def close(self) -> None:
        """Write what waits and close the file. Idempotent."""
        self._stopping.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.wait(PERIOD_S):
            self._write_waiting()
        self._write_waiting()
        os.close(self._file)

    def _write_waiting(self) -> None:
        while self._waiting:
            events = [self._waiting.popleft() for _ in range(min(len(self._waiting), _LINES_PER_WRITE))]
            try:
                self._append(b"".join(map(encode_log_line, events)))
                self._fails = False
            except OSError as exc:
                self.dropped += len(events)
                if not self._fails:  # once for each outage
                    _log.error("the request log %s cannot be written, and lacks requests: %s", self._path, exc)
                self._fails = True

    def _append(self, lines: bytes) -> None:
        self._reopen_if_moved()
        written = os.write(self._file, lines)
        if written < len(lines):  # the disk is full; writing the rest later would start in the middle of a line
            raise OSError(f"only {written} of {len(lines)} bytes were written")

    def _reopen_if_moved(self) -> None:
        ours = os.fstat(self._file)
        try:
            there = os.stat(self._path)
            is_ours = (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
        except FileNotFoundError:
            is_ours = False
        if not is_ours:
            fresh = self._open()
            os.close(self._file)
            self._file = fresh

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
