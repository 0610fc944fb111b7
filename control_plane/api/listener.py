"""Accepts connections for both doors: on a port or a Unix socket, with TLS or without."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

_TLS_GOODBYE_S = 0.5
"""For a client to answer our closing of a TLS connection. One that is idle does not read, and would hold up a drain to its end."""


async def accept_on(
    listening: socket.socket, make_protocol: Callable[[], asyncio.Protocol], *, tls: ssl.SSLContext | None, handshake_timeout_s: float
) -> asyncio.Server:
    """Listen on a bound socket; whoever does not finish a TLS handshake in time is let go."""
    loop = asyncio.get_running_loop()
    make = loop.create_unix_server if listening.family == socket.AF_UNIX else loop.create_server
    if tls is None:
        return await make(make_protocol, sock=listening)
    return await make(
        make_protocol, sock=listening, ssl=tls, ssl_handshake_timeout=handshake_timeout_s, ssl_shutdown_timeout=_TLS_GOODBYE_S
    )
