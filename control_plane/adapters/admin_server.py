"""Runs the admin API under uvicorn, inside our own task group and without its signal handlers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from control_plane.adapters.listening import allow_restart


class AdminServer(uvicorn.Server):
    """Serves on a bound socket until `should_exit` is set; signals are the process's business."""

    def __init__(self, app: FastAPI, bound: socket.socket) -> None:
        # No proxy_headers: whose word is taken for a caller's address is `services/access`'s business, and uvicorn takes loopback's.
        super().__init__(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, server_header=False, proxy_headers=False))
        self._bound = bound

    def listen(self) -> None:
        """Let callers connect, who are answered as soon as it runs: it may be announced from now on."""
        allow_restart(self._bound).listen(self.config.backlog)

    async def run_until_told(self) -> None:
        await self.serve(sockets=[allow_restart(self._bound)])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
