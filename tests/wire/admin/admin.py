"""The admin API on a real port, in a thread of its own, for blocking clients."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from control_plane.admin.server import make_admin_server
from control_plane.frontends.http.limits import HttpLimits
from control_plane.frontends.http.server import HttpServer
from control_plane.host.network.exposure import AllowedHosts
from control_plane.host.network.listening import bind_tcp
from tests.aio import changing
from tests.unit.admin.admin_bench import Bench

_START_S = 100.0
LIMITS = HttpLimits(max_body_bytes=1 << 20, max_header_bytes=16 << 10, max_connections=50)


def server_of(bench: Bench, limits: HttpLimits = LIMITS) -> HttpServer:
    return make_admin_server(bench.app, bench.access, limits, None if bench.authentication else AllowedHosts())


@contextmanager
def admin_server(bench: Bench, limits: HttpLimits = LIMITS) -> Iterator[str]:
    """Serve the admin API; yields its URL."""
    with bind_tcp("127.0.0.1", 0, setting="--admin-port") as bound:
        ready, over = threading.Event(), threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(_serve(bench, limits, bound, ready, over)), name="admin-server")
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        thread.start()
        try:
            assert ready.wait(_START_S), "the admin server does not start"
            yield url
        finally:
            over.set()
            thread.join()


async def _serve(bench: Bench, limits: HttpLimits, bound: socket.socket, ready: threading.Event, over: threading.Event) -> None:
    bench.loop = asyncio.get_running_loop()
    await bench.known.start()
    async with changing(bench.models), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(bench.known.run())
        server = server_of(bench, limits)
        await server.listen(tasks, bound)
        ready.set()
        while not over.is_set():
            await asyncio.sleep(0.01)
        await server.drain(0)
        following.cancel()
