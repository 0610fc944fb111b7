"""The sockets of one `tidegate serve`: four ports and the Unix sockets, all bound before anything slow
starts.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from control_plane.core.errors import StartupError
from control_plane.host.network.listening import address_of, bind_tcp, port_of, url_of
from control_plane.host.network.unix_socket import UnixSocket
from control_plane.settings import Settings

_log = logging.getLogger(__name__)


class ServiceSockets:
    """All bound sockets of the process; `close` also removes the Unix sockets' files."""

    def __init__(self, settings: Settings) -> None:
        """Bind every socket. Raises StartupError, and leaves nothing behind then."""
        gateway, admin = settings.gateway, settings.admin
        self._settings = settings
        self.admin_unix: UnixSocket | None = None
        with ExitStack() as bound:
            self.http = bound.enter_context(bind_tcp(gateway.host, gateway.http_port, setting="--http-port"))
            self.grpc = bound.enter_context(bind_tcp(gateway.host, gateway.grpc_port, setting="--grpc-port"))
            self.metrics = bound.enter_context(bind_tcp(gateway.host, gateway.metrics_port, setting="--metrics-port"))
            self.admin = bound.enter_context(bind_tcp(admin.admin_host, admin.admin_port, setting="--admin-port"))
            self.http_unix = _bind_unix(gateway.http_socket, "--http-socket", bound)
            self.grpc_unix = _bind_unix(gateway.grpc_socket, "--grpc-socket", bound)
            # Up to here, a socket that cannot be bound closes those before it.
            self._bound = bound.pop_all()

    def bind_in_state_dir(self) -> None:
        """With TLS, bind a Unix socket for commands on this machine, which then need no certificates.

        The state folder must be locked by now: another tidegate's socket may be in it otherwise.
        """
        if not self._settings.tls.admin_tls_is_on:
            return
        try:
            self.admin_unix = _bind_unix(self._settings.process.state_dir / "admin.sock", "--state-dir", self._bound)
        except StartupError as exc:
            # Long paths do not fit into a socket address; commands then use the TLS port like anybody else.
            _log.warning("commands on this machine need `--admin-url https://...` and a certificate that they trust: %s", exc)

    def settings_in_force(self) -> Settings:
        """Return the settings with the ports that are bound, in place of 0."""
        ports = {"http_port": port_of(self.http), "grpc_port": port_of(self.grpc), "metrics_port": port_of(self.metrics)}
        return replace(self._settings, gateway=self._settings.gateway.model_copy(update=ports))

    def endpoints(self) -> dict[str, str]:
        """Return the URLs of all sockets by name, as `endpoints.json` has them."""
        scheme = "https" if self._settings.tls.tls_is_on else "http"
        found = {
            "http": url_of(self.http, scheme),
            "grpc": address_of(self.grpc),
            "metrics": url_of(self.metrics, scheme) + "/metrics",
            "admin": url_of(self.admin, "https" if self._settings.tls.admin_tls_is_on else "http"),
        }
        for name, unix_socket in (("admin_socket", self.admin_unix), ("http_socket", self.http_unix), ("grpc_socket", self.grpc_unix)):
            if unix_socket is not None:
                found[name] = f"unix:{unix_socket.path}"
        return found

    def close(self) -> None:
        self._bound.close()


def _bind_unix(path: Path | None, setting: str, bound: ExitStack) -> UnixSocket | None:
    if path is None:
        return None
    made = UnixSocket(path, setting=setting)
    bound.callback(made.remove)
    return made
