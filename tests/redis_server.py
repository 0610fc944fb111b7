"""A real Redis for a test: a free port, a folder of its own, gone at the end."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DURABLE = ("--appendonly", "yes", "--maxmemory-policy", "noeviction")
PASSWORD = "pa55/word"  # with a character that an URL must escape
ESCAPED_PASSWORD = PASSWORD.replace("/", "%2F")
_START_TIMEOUT_S = 100.0


class RedisServer:
    """One that can be stopped and started again with what it has written, and be held still."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        program = shutil.which("redis-server")
        assert program is not None, "redis-server is missing: run apt-get install redis-server as root"
        own = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--requirepass", PASSWORD)
        self._command = (program, *own, *options)
        self._log = folder / "redis.log"
        self.start()

    @property
    def url(self) -> str:
        return f"redis://:{ESCAPED_PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        with self._log.open("a") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline_s, "redis-server does not start"
            time.sleep(0.02)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=60.0)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=60.0)

    def call(self, *words: str) -> bytes:
        """The first piece of its answer to a command; small ones only."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60.0) as connection:
            for command in (("AUTH", PASSWORD), words):
                connection.sendall(
                    b"".join([b"*%d\r\n" % len(command), *(b"$%d\r\n%s\r\n" % (len(w.encode()), w.encode()) for w in command)])
                )
                answer = connection.recv(65536)
        return answer

    def _answers(self) -> bool:
        with suppress(OSError):
            return self.call("PING") == b"+PONG\r\n"
        return False


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[RedisServer]:
    """Durable unless `options` say otherwise."""
    server = RedisServer(folder, *(options or DURABLE))
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait(timeout=60.0)
