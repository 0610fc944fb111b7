"""Connections to a Triton, over TCP or through a Unix socket, also one whose path the kernel or gRPC does not take.

For the adapters that speak to Triton: `triton/adapters/http`, `triton/adapters/grpc`, `triton/adapters/control`,
`triton/adapters/connected`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from control_plane.core.endpoints import Address, TcpAddress

_PLAIN_PATH = re.compile(r"[A-Za-z0-9_/.:-]{1,107}")
"""The kernel keeps 108 bytes with a NUL at the end (unix(7)); gRPC reads a URI, and several addresses where there are commas."""

_RETRY_S = 0.005
"""Until the listener's queue may have room; it is accepted from in far less."""

P = TypeVar("P", bound=asyncio.Protocol)


async def open_connection(make: Callable[[], P], address: Address) -> P:
    """Connect; the caller has the deadline. Cancelled, it leaves no connection, but `make` may have been called. Raises OSError."""
    loop = asyncio.get_running_loop()
    if isinstance(address, TcpAddress):
        return (await loop.create_connection(make, address.host, address.port))[1]
    with short_path(address.path) as path:
        while True:
            try:
                return (await loop.create_unix_connection(make, path))[1]
            except BlockingIOError:  # the listener's queue is full, for which a TCP one would make us wait
                await asyncio.sleep(_RETRY_S)


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """The same socket by a path that everybody takes, within the block: through its open folder where its own is long or odd.

    Named by our process id, so that programs which we start find it as well. Where there is no such folder, `path` as it is.
    """
    folder = None if _PLAIN_PATH.fullmatch(path) else _open_folder(path)
    if folder is None:
        yield path
        return
    try:
        yield f"/proc/{os.getpid()}/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def _open_folder(path: str) -> int | None:
    try:
        return os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
