"""A Redis for the state of gateways, which a drill may kill, start again with what it has written, hold still, empty and slow down."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import redis

from perf.servers.processes import end, free_port, program

_START_S = 60.0
_FILES = "appendonlydir"
_FOR_EVER = -1
"""That a key has no time to live, as PTTL says it."""
_OPTIONS = (
    "--bind",
    "127.0.0.1",
    "--save",
    "",
    "--appendonly",
    "yes",
    "--maxmemory-policy",
    "noeviction",
    "--enable-debug-command",
    "local",
)


class Redis:
    """Durable, as a state needs it."""

    def __init__(self, folder: Path, *options: str) -> None:
        """`options` come on top of those that a state needs."""
        self._folder, self._port = folder, free_port()
        self._options = (*_OPTIONS, *options)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        """Blocks until it answers. Raises RuntimeError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [program("redis-server") or "redis-server", "--port", str(self._port), "--dir", str(self._folder), *self._options]
        with (self._folder / "output.txt").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline_s = time.monotonic() + _START_S
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError("redis-server did not start")
            time.sleep(0.02)

    def save(self, to: Path) -> None:
        """Copy what is on disk now, as a power cut would leave it: the last command may be cut off."""
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self._folder / _FILES, to)

    def go_back(self, to: Path) -> None:
        """Have only what `save` has copied when it starts again; it was killed before."""
        shutil.rmtree(self._folder / _FILES)
        shutil.copytree(to, self._folder / _FILES)

    def kill(self) -> None:
        assert self._process is not None, "it was never started"
        self._process.kill()
        self._process.wait()

    def signal(self, number: int) -> None:
        assert self._process is not None, "it was never started"
        os.kill(self._process.pid, number)

    def call(self, *words: str) -> bytes:
        """The first piece of its answer to a command."""
        command = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(each.encode()), each.encode()) for each in words)
        with socket.create_connection(("127.0.0.1", self._port), timeout=10.0) as connection:
            connection.sendall(command)
            return connection.recv(65536)

    def dump(self) -> dict[bytes, bytes]:
        """All that it holds for good now: leases run out by themselves."""
        with redis.Redis(port=self._port) as client:
            return {key: client.dump(key) for key in client.scan_iter(count=1000) if client.pttl(key) == _FOR_EVER}

    def restore(self, saved: Mapping[bytes, bytes]) -> None:
        """What is not there any more."""
        with redis.Redis(port=self._port) as client:
            for key, value in saved.items():
                if not client.exists(key):
                    client.restore(key, 0, value)

    def answers(self) -> bool:
        with suppress(OSError):
            return self.call("PING") == b"+PONG\r\n"
        return False

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT)
            end(self._process)
