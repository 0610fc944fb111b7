"""Binding of TCP ports, separate from listening on them.

Ports are bound before anything slow starts, so that a taken port is reported at once; `listen` comes when all
is ready.
"""

from __future__ import annotations

import errno
import socket

from control_plane.core.endpoints import authority
from control_plane.core.errors import StartupError


def bind_tcp(host: str, port: int, *, setting: str) -> socket.socket:
    """Bind a socket that does not listen yet; port 0 becomes a free port.

    Raises:
        StartupError: the port is taken, needs privileges, or the address is not this machine's.
    """
    bound, address = _tcp_socket(host, port, setting)
    _bind(bound, address, host, port, setting)
    # Taken back at once: while all sockets on a port have SO_REUSEADDR, any number may bind it, and only
    # `listen` fails, which comes after everything slow has started.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return bound


def bind_shared_tcp(host: str, port: int, *, setting: str) -> socket.socket:
    """Bind a worker's socket to a port that the parent holds and has opened by `share_port`; all workers bind
    the same.
    """
    bound, address = _tcp_socket(host, port, setting)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _bind(bound, address, host, port, setting)
    return bound


def allow_restart(bound: socket.socket) -> socket.socket:
    """Set SO_REUSEADDR before listening, so that closing connections (TIME_WAIT) do not keep a restart from
    the port.
    """
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return bound


def share_port(bound: socket.socket) -> None:
    """Let workers of this user bind the port too. `bound` holds it and never listens, so it never gets a
    connection.

    SO_REUSEPORT is set after the bind: set before, the bind would silently join a port that another gateway's
    workers share.
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
    """Return the port of a bound socket."""
    port: int = bound.getsockname()[1]
    return port


def _tcp_socket(host: str, port: int, setting: str) -> tuple[socket.socket, object]:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as exc:  # the latter: a label of the name is empty or too long
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise StartupError(f"{setting}: {host} is not an address of this machine: {why}") from exc
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
        return f"port {port} on {host} is taken; end what listens there or choose another with {setting} (0 chooses a free one)"
    return f"cannot listen on {host}:{port} ({setting}): {error.strerror}"
