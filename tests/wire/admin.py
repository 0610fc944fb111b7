"""The admin API on a real port, in a thread of its own, for clients that wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from control_plane.adapters.admin_server import AdminServer
from control_plane.adapters.listening import bind_tcp
from tests.aio import changing
from tests.unit.api.admin_bench import Bench

_START_S = 100.0


@contextmanager
def admin_server(bench: Bench) -> Iterator[str]:
    """Its URL."""
    bound = bind_tcp("127.0.0.1", 0, setting="--admin-port")
    server = AdminServer(bench.app, bound)
    thread = threading.Thread(target=lambda: asyncio.run(_serve(bench, server)), name="admin-server")
    thread.start()
    try:
        ends_s = time.monotonic() + _START_S
        while not server.started:
            assert thread.is_alive(), "the admin server has ended"
            assert time.monotonic() < ends_s, "the admin server does not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


async def _serve(bench: Bench, server: AdminServer) -> None:
    await bench.known.start()
    async with changing(bench.models), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(bench.known.run())
        await server.run_until_told()
        following.cancel()
