"""Connecting to a Triton over TCP or a Unix socket, also to a socket whose path the kernel or gRPC does not
accept.

Used by the adapters that talk to Triton: `triton/adapters/http/client`, `triton/adapters/grpc/client`,
`triton/adapters/control`, `triton/adapters/connected`.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from control_plane.core.endpoints import Address, TcpAddress

_PLAIN_PATH = re.compile(r"[A-Za-z0-9_/.:-]{1,107}")
"""Paths that everybody accepts: the kernel has 108 bytes with the final NUL (unix(7)); gRPC parses a URI, and
splits it at commas.
"""

_RETRY_S = 0.005
"""Pause before a retry while the listener's queue is full; the listener accepts in far less time."""

LARGE_READ_BYTES = 64 * 1024
"""A read of an answer that is followed by no other in the same turn of the loop: uvloop would read up to 8 MB."""

MAX_ANSWER_BYTES = 2**31 - 1
"""Most bytes of an answer: as many as a gRPC message can have, since Triton and its models are trusted with memory."""

P = TypeVar("P", bound=asyncio.Protocol)


async def open_connection(make: Callable[[], P], address: Address, tls: ssl.SSLContext | None = None) -> P:
    """Connect, over TCP with `tls` if given; the caller sets the deadline. Raises OSError, also where the TLS
    handshake fails.

    After a cancellation there is no connection, though `make` may have been called.
    """
    loop = asyncio.get_running_loop()
    if isinstance(address, TcpAddress):
        return (await loop.create_connection(make, address.host, address.port, ssl=tls))[1]
    with short_path(address.path) as path:
        while True:
            try:
                return (await loop.create_unix_connection(make, path))[1]
            except BlockingIOError:  # the listener's queue is full; with TCP the kernel would wait for room
                await asyncio.sleep(_RETRY_S)


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """Yield a path to the same socket that everybody accepts, valid within the context.

    A path that is long or odd is replaced by one through its open folder in /proc, with our process id, so
    that programs that we start can use it as well. If the folder does not exist, the path is yielded as it
    is.
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
