"""A real RabbitMQ for a test or a scenario: a node name, ports and folders of its own, nothing of it left at the end.

It takes some seconds to start, so a run has one. Its name service (epmd) is its own, too: the machine's may be
another's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perf.servers.processes import free_port

USER, PASSWORD = "tidegate", "pa55/word"  # with a character that an URL must escape
_PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one on the PATH changes to another user first
_START_TIMEOUT_S = 200.0


CONFIG = f"""
listeners.tcp.1 = 127.0.0.1:PORT
default_user = {USER}
default_pass = {PASSWORD}
log.console = true
log.console.level = info
log.file = false
"""


class RabbitmqServer:
    """RabbitMQ that can be killed and started again with what it has on disk, and be held still."""

    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        """`config` is its rabbitmq.conf, with `PORT` where its port stands."""
        epmd = shutil.which("epmd")
        if epmd is None or not _PROGRAM.exists():
            raise RuntimeError("rabbitmq-server is missing: run apt-get install rabbitmq-server as root")
        self.port, names, distribution = free_port(), free_port(), free_port()
        self._log = folder / "rabbitmq.log"
        (folder / "rabbitmq.conf").write_text(config.replace("PORT", str(self.port)))
        (folder / "plugins").write_text("[].\n")
        (folder / "environment").write_text("")
        self._environment = {
            **os.environ,
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"tidegate-{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "environment"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1",
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        self._names = subprocess.Popen([epmd, "-port", str(names), "-address", "127.0.0.1"], env=self._environment)
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"amqp://{USER}:{PASSWORD.replace('/', '%2F')}@127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Start it, and wait until clients can connect."""
        self._log.write_text("")
        with self._log.open("a") as log:
            # A group of its own: the shell that starts the virtual machine does not end it.
            self.process = subprocess.Popen([_PROGRAM], env=self._environment, stdout=log, stderr=log, start_new_session=True)
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while "Server startup complete" not in self._log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"RabbitMQ does not start:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.wait(timeout=60.0)

    def hold(self) -> None:
        """Hold it still: it keeps its connections and says nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        with suppress(AttributeError):
            self.kill()
        self._names.kill()
        self._names.wait(timeout=60.0)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


@contextmanager
def rabbitmq_server(folder: Path, config: str = CONFIG) -> Iterator[RabbitmqServer]:
    server = RabbitmqServer(folder, config)
    try:
        yield server
    finally:
        server.close()
