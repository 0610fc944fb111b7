"""Heartbeat of a process: a file in its state folder says when its event loop ran last.

Of a process that is frozen, or whose event loop is, the kernel goes on accepting connections, and what it has started goes
on serving. Who has to start it anew reads this file (`deploy/images/is_alive.py`). Called by `app/node`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from control_plane.host.boot_clock import boot_time_s

_log = logging.getLogger(__name__)

FILE = "heartbeat"
EVERY_S = 2.0


async def beat(folder: Path, *, every_s: float = EVERY_S) -> None:
    """Write the boot clock's seconds into the folder's file, always as many characters, until cancelled."""
    fault, loop = "", asyncio.get_running_loop()
    # Not the threads that all share: where those read large files, the event loop is well and this would wait.
    thread = ThreadPoolExecutor(1, thread_name_prefix="heartbeat")
    while True:
        try:
            await loop.run_in_executor(thread, _write, folder / FILE)
            fault = ""
        except OSError as exc:
            if exc.strerror != fault:
                _log.warning(
                    "the heartbeat %s cannot be written, for lack of which a liveness probe fails: %s", folder / FILE, exc.strerror
                )
            fault = exc.strerror or ""
        await asyncio.sleep(every_s)


def _write(path: Path) -> None:
    # In place, and never longer than before: a full disk takes it, too.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, f"{boot_time_s():020.3f}\n".encode(), 0)
    finally:
        os.close(descriptor)
