"""Binds the ports before anything slow starts, so that one that is taken is told at once; listening begins when all is ready."""

from __future__ import annotations

import errno
import socket

from control_plane.domain.endpoints import authority
from control_plane.domain.errors import StartupError


def bind_tcp(host: str, port: int, *, setting: str) -> socket.socket:
    """A bound socket that does not listen yet; port 0 has been chosen.

    Raises:
        StartupError: the port is taken, needs privileges, or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as exc:
        raise StartupError(f"{setting}: {host} is not an address of this machine: {exc.strerror}") from exc
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as exc:
        bound.close()
        raise StartupError(explain_bind(exc, host, port, setting)) from exc
    # While all sockets on a port have it, any number may bind it and only `listen` tells, after everything slow has started.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    bound.setblocking(False)
    return bound


def allow_restart(bound: socket.socket) -> socket.socket:
    """To be called before listening: connections that are still closing must not keep the next life from binding the port."""
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return bound


def explain_bind(error: OSError, host: str, port: int, setting: str) -> str:
    """Why binding failed, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken; end what listens there or choose another with {setting} (0 picks a free one)"
    return f"cannot listen on {host}:{port} ({setting}): {error.strerror}"


def url_of(bound: socket.socket, scheme: str) -> str:
    """`scheme://host:port` of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"{scheme}://{authority(host, port)}"
