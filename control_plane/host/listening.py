"""Binds the ports before anything slow starts, so that one that is taken is told at once; listening begins when all is ready."""

from __future__ import annotations

import errno
import socket

from control_plane.core.endpoints import authority
from control_plane.core.errors import StartupError


def bind_tcp(host: str, port: int, *, setting: str) -> socket.socket:
    """A bound socket that does not listen yet; port 0 has been chosen.

    Raises:
        StartupError: the port is taken, needs privileges, or the address is not this machine's.
    """
    bound, address = _tcp_socket(host, port, setting)
    _bind(bound, address, host, port, setting)
    # While all sockets on a port have it, any number may bind it and only `listen` tells, after everything slow has started.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return bound


def bind_shared_tcp(host: str, port: int, *, setting: str) -> socket.socket:
    """A bound socket of a worker, beside its siblings' on a port that the parent holds and has opened by `share_port`."""
    bound, address = _tcp_socket(host, port, setting)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _bind(bound, address, host, port, setting)
    return bound


def allow_restart(bound: socket.socket) -> socket.socket:
    """To be called before listening: connections that are still closing must not keep the next life from binding the port."""
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return bound


def share_port(bound: socket.socket) -> None:
    """Let workers of this user bind the port too. `bound` holds it and never listens: no connection is ever given to it.

    Only now: a socket that asks for it when it binds would take a port that another gateway's workers share, silently.
    """
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def url_of(bound: socket.socket, scheme: str) -> str:
    """`scheme://host:port` of a bound socket."""
    return f"{scheme}://{address_of(bound)}"


def address_of(bound: socket.socket) -> str:
    """`host:port` of a bound socket."""
    host, port = bound.getsockname()[:2]
    return authority(host, port)


def port_of(bound: socket.socket) -> int:
    port: int = bound.getsockname()[1]
    return port


def _tcp_socket(host: str, port: int, setting: str) -> tuple[socket.socket, object]:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(family, kind, protocol)
    except OSError as exc:
        raise StartupError(f"{setting}: {host} is not an address of this machine: {exc.strerror}") from exc
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setblocking(False)
    return made, address


def _bind(made: socket.socket, address: object, host: str, port: int, setting: str) -> None:
    try:
        made.bind(address)  # type: ignore[arg-type]
    except OSError as exc:
        made.close()
        raise StartupError(_explain(exc, host, port, setting)) from exc


def _explain(error: OSError, host: str, port: int, setting: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken; end what listens there or choose another with {setting} (0 picks a free one)"
    return f"cannot listen on {host}:{port} ({setting}): {error.strerror}"
