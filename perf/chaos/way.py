"""The way between a gateway and a node, which a drill can hold up without closing it, as a network does that loses everything."""

from __future__ import annotations

import contextlib
import select
import socket
import threading

_BYTES = 65_536
_LOOK_S = 0.05


class Way:
    """A TCP forwarder on loopback, in a thread of its own."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._open = threading.Event()
        self._open.set()
        self._ends = threading.Event()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hold_up(self) -> None:
        """Let nothing through from now on; connections stay open, and new ones are accepted by nobody."""
        self._open.clear()

    def let_through(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._ends.set()
        self._open.set()
        self._thread.join()

    def _run(self) -> None:
        with self._listening:
            while not self._ends.is_set():
                self._open.wait()
                ready, _, _ = select.select([self._listening, *self._pairs], [], [], _LOOK_S)
                for each in ready if self._open.is_set() else ():
                    self._take(each)
        for each in list(self._pairs):
            each.close()

    def _take(self, ready: socket.socket) -> None:
        if ready is self._listening:
            ours, _ = ready.accept()
            try:
                theirs = socket.create_connection(self._target, timeout=1.0)
            except OSError:  # the node is away
                ours.close()
                return
            theirs.settimeout(None)
            self._pairs |= {ours: theirs, theirs: ours}
        elif ready in self._pairs:  # the other end of a pair may just have gone
            data = b""
            with contextlib.suppress(OSError):
                data = ready.recv(_BYTES)
                self._pairs[ready].sendall(data)
            if not data:
                other = self._pairs.pop(ready)
                del self._pairs[other]
                ready.close()
                other.close()
