"""Unix sockets for clients on this machine, beside the ports; only this user may connect.

Unlike a port, a socket file listens from the start: that is how another `tidegate` tells it from a stale file
that a killed process left behind. Clients that connect before everything is ready wait in the backlog.
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
    """A listening Unix socket and its file."""

    def __init__(self, path: Path, *, setting: str) -> None:
        """Bind and listen; the file has mode 0600 from its first moment.

        Raises:
            StartupError: somebody listens there, something else than a socket is there, or it cannot be made.
        """
        self.path = path.absolute()
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.setblocking(False)
        # Before the bind: Linux gives the file the socket's mode, less the umask. A chmod after it would
        # leave a gap in which others could connect.
        os.fchmod(self.listening.fileno(), 0o600)
        try:
            with _folder_lock(self.path.parent):
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
        """Close the socket and remove its file, unless the file belongs to another process by now."""
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
            raise StartupError(f"{setting} {self.path}: there is a file that is not a socket; remove it or choose another path")
        # Only a connection tells: the file of a process that was killed is still there.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(self.path))
            except ConnectionRefusedError:
                return
            except BlockingIOError:
                pass  # the backlog of a living listener is full
        raise StartupError(f"{setting} {self.path} is taken; end what listens there or choose another path")


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: of two processes that find the same stale file, the second would remove the
    first's new one.
    """
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
