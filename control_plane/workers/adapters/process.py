"""Starts worker processes: `workers/ports.WorkerLauncher` and `workers/ports.WorkerProcess`, for
`workers/parent/workers`.

A worker is a program of its own (`control_plane.app.worker_program`), started afresh and not forked, so that it
shares nothing with the parent but the sockets it is given. The kernel kills it when the parent ends, however
the parent ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

from control_plane.core.errors import StartupError
from control_plane.host.network.listening import bind_shared_tcp
from control_plane.host.network.unix_socket import UnixSocket
from control_plane.settings import GatewaySettings, Settings, to_plain
from control_plane.workers.adapters.link import WorkerLink
from control_plane.workers.messages import FromWorker, ToWorker
from control_plane.workers.messages.to_workers import Configure

WORKER_MODULE = "control_plane.app.worker_program"


class WorkerProcessLauncher:
    """Launcher of workers that share the TCP ports (SO_REUSEPORT) and the parent's Unix sockets."""

    def __init__(self, settings: Settings, *, http_socket: UnixSocket | None, grpc_socket: UnixSocket | None) -> None:
        """`settings` must hold the real ports: port 0 would give each worker another one."""
        self._settings = settings
        self._http_socket = http_socket
        self._grpc_socket = grpc_socket

    async def start(self, number: int) -> RunningWorker:
        """See `workers/ports.WorkerLauncher.start`."""
        ports = _bind(self._settings.gateway)
        http, grpc = (each.fileno() for each in ports)
        inherited = [each.listening.fileno() for each in (self._http_socket, self._grpc_socket) if each is not None]
        try:
            link, process = await _start_linked([http, grpc, *inherited])
        except BaseException as exc:
            for bound in ports:
                bound.close()
            if isinstance(exc, OSError):
                raise StartupError(f"worker {number} cannot be started: {exc.strerror or exc}") from exc
            raise
        shared = _descriptor(self._http_socket), _descriptor(self._grpc_socket)
        link.send(Configure(number, to_plain(self._settings), http, grpc, *shared))
        return RunningWorker(process, link, ports)


class RunningWorker:
    """Handle of one running worker process; see `workers/ports.WorkerProcess`."""

    def __init__(self, process: Process, link: WorkerLink, ports: Sequence[socket.socket]) -> None:
        """`ports` are the worker's own TCP sockets, which this process has, too."""
        self._process = process
        self._link = link
        self._ports = ports

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToWorker) -> None:
        self._link.send(message)

    async def receive(self) -> FromWorker | None:
        message = cast("FromWorker | None", await self._link.receive())
        if message is None:
            self._close()  # at once: as long as this process has its ports, the kernel gives connections to a dead worker
        return message

    async def wait(self) -> str:
        status = await self._process.wait()
        self._close()
        return f"it was killed by signal {-status}" if status < 0 else f"it ended with exit status {status}"

    def stop_accepting(self) -> None:
        for port in self._ports:
            with suppress(OSError):  # it does not listen any more, or not yet
                port.shutdown(socket.SHUT_RD)

    def kill(self) -> None:
        self._close()
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)

    def _close(self) -> None:
        self._link.close()
        for port in self._ports:
            port.close()


async def _start_linked(inherited: Sequence[int]) -> tuple[WorkerLink, Process]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:  # the worker has its copy; the parent must close its own, or it would never see the worker's end close
        try:
            # A session of its own, so that Ctrl-C and a closing terminal signal the parent only, which then
            # drains.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", WORKER_MODULE, str(theirs.fileno()), str(os.getpid())),
                stdin=DEVNULL,
                pass_fds=(theirs.fileno(), *inherited),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    return await WorkerLink.over(ours), process


def _bind(gateway: GatewaySettings) -> tuple[socket.socket, socket.socket]:
    """Bind a worker's own sockets to the ports that all workers share. Raises StartupError."""
    http = bind_shared_tcp(gateway.host, gateway.http_port, setting="--http-port")
    try:
        return http, bind_shared_tcp(gateway.host, gateway.grpc_port, setting="--grpc-port")
    except StartupError:
        http.close()
        raise


def _descriptor(unix_socket: UnixSocket | None) -> int | None:
    return None if unix_socket is None else unix_socket.listening.fileno()
