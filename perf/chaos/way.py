"""The way to a node, which a drill can hold up without closing it, as a network does that loses everything; or to a Service,
whose new connections go to each of its pods in turn, while those that there are stay where they are, as kube-proxy has it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading

_BYTES = 65_536
_LOOK_S = 0.05


class Way:
    """A TCP forwarder on loopback, in a thread of its own."""

    def __init__(self, *target_ports: int) -> None:
        self.target_ports = list(target_ports)
        """Where new connections go, in turn; may be changed at any time."""
        self.target_host = "127.0.0.1"
        self._turn = 0
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

    def _next(self) -> int:
        """The port that the next connection goes to. Raises LookupError: there is none."""
        targets = tuple(self.target_ports)
        if not targets:
            raise LookupError("no target")
        self._turn += 1
        return targets[self._turn % len(targets)]

    def _take(self, ready: socket.socket) -> None:
        if ready is self._listening:
            ours, _ = ready.accept()
            try:
                theirs = socket.create_connection((self.target_host, self._next()), timeout=1.0)
            except (OSError, LookupError):  # the node is away; the Service has no pod
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
