"""The state folder of a run: one running `tidegate` per folder, guarded by a file lock that ends with the
process.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from control_plane.core.errors import StartupError

_ENDPOINTS = "endpoints.json"


class StateDir:
    """Context manager that locks the state folder; `endpoints.json` exists in it only while everything is
    ready.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self._written: IO[str] | None = None

    def __enter__(self) -> Self:
        """Create and lock the folder. Raises StartupError if it cannot be written, or another `tidegate`
        holds it.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Not "w", which would empty the file of whoever holds it: his pid is in it.
            self._lock = (self.path / "lock").open("a+")
        except OSError as exc:
            raise StartupError(f"--state-dir {self.path} cannot be written: {exc.strerror}; choose another") from exc
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            self._lock.seek(0)
            pid = self._lock.read().strip()
            self._lock.close()
            raise StartupError(f"--state-dir {self.path} is in use by tidegate with pid {pid}; stop it or choose another") from exc
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        self._endpoints.unlink(missing_ok=True)  # left behind by a process that was killed
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._endpoints.unlink(missing_ok=True)
        for held in (self._written, self._lock):
            if held is not None:
                held.close()

    @property
    def _endpoints(self) -> Path:
        return self.path / _ENDPOINTS

    def write_endpoints(self, endpoints: Mapping[str, str]) -> None:
        """Write the URLs of all ports atomically: a reader sees the whole file or none.

        The file stays locked while this process lives, so that readers recognize one left behind by a killed
        process.
        """
        partial = self._endpoints.with_suffix(".partial")
        written = partial.open("w")
        # Locked before the rename: a reader must never see the file unlocked while this process lives.
        fcntl.flock(written, fcntl.LOCK_EX)
        written.write(json.dumps(endpoints, indent=2) + "\n")
        written.flush()
        partial.replace(self._endpoints)
        # Only now: readers of the old file would have found it unlocked.
        if self._written is not None:
            self._written.close()
        self._written = written


def running_state_dirs(processes: Path = Path("/proc")) -> list[Path]:
    """Return the state folders of this user's running `tidegate`s that are ready.

    Each of them keeps its `endpoints.json` open, which /proc (`processes`) shows.
    """
    found: set[Path] = set()
    for process in processes.glob("[0-9]*"):
        try:
            if process.stat().st_uid == os.geteuid():
                opened = (Path(os.readlink(descriptor)) for descriptor in (process / "fd").iterdir())
                found.update(path.parent for path in opened if path.name == _ENDPOINTS)
        except OSError:  # the process has just ended, or is not ours to inspect
            continue
    return sorted(path for path in found if read_endpoints(path))


def read_endpoints(state_dir: Path) -> dict[str, str]:
    """Return the URLs that a running `tidegate` wrote there; empty if none is ready."""
    try:
        with (state_dir / _ENDPOINTS).open() as written:
            found: dict[str, str] = json.load(written)
            fcntl.flock(written, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return found  # locked: its writer lives
    except (OSError, ValueError):
        return {}
    return {}
