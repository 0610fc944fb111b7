"""Unix sockets that clients on this machine connect to beside the ports: only this user may, and one file has one owner.

Unlike a port, it listens from the start: that is how the next `tidegate` tells it from one that a killed process has
left. Who connects before everything is ready waits until it is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from control_plane.core.errors import StartupError

_BACKLOG = 512


class UnixSocket:
    """One listening socket, and its file."""

    def __init__(self, path: Path, *, setting: str) -> None:
        """Bind and listen; the file has mode 0600 from its first moment.

        Raises:
            StartupError: somebody listens there, something else than a socket is there, or it cannot be made.
        """
        self.path = path.absolute()
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.setblocking(False)
        # Before it is bound: Linux gives the file the socket's own mode, less the umask. A chmod after it would come late.
        os.fchmod(self.listening.fileno(), 0o600)
        try:
            with _alone_in(self.path.parent):
                self._bind(setting)
                self.listening.listen(_BACKLOG)
                self._identity = _identity(self.path)
        except OSError as exc:
            self.listening.close()
            raise StartupError(f"{setting} {path}: {exc.strerror or exc}") from exc
        except StartupError:
            self.listening.close()
            raise

    def remove(self) -> None:
        """Close it and remove its file, unless that is another's by now."""
        self.listening.close()
        if _identity(self.path) == self._identity:
            self.path.unlink(missing_ok=True)

    def _bind(self, setting: str) -> None:
        try:
            self.listening.bind(str(self.path))
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise
            self._refuse_unless_stale(setting)
            self.path.unlink(missing_ok=True)
            self.listening.bind(str(self.path))

    def _refuse_unless_stale(self, setting: str) -> None:
        if not self.path.is_socket():
            raise StartupError(f"{setting} {self.path}: there is something that is no socket; remove it or choose another path")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(self.path))
            except ConnectionRefusedError:
                return
            except BlockingIOError:
                pass  # so many wait for it that no more are let in
        raise StartupError(f"{setting} {self.path} is taken; end what listens there or choose another path")


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Of two that find the same stale file only one may replace it: the other would remove the first one's."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
