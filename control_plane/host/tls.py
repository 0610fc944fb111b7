"""TLS for the ports: contexts whose certificate, key and client authorities are taken up anew when their files change.

A server keeps one context for its life. Each new connection is switched, at its first message, to the context made
last (`SSL_set_SSL_CTX`, in the server-name callback, which OpenSSL calls with and without a name): certificate and
authorities are then those of the new files, for this connection and no older one.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from control_plane.core.errors import StartupError
from control_plane.host.plain_text_on_tls import AnsweringContext
from control_plane.settings import TlsSettings

_log = logging.getLogger(__name__)

_CHECK_EVERY_S = 2.0

HTTP = "http/1.1"
GRPC = "h2"


class Tls:
    """The contexts of one process, by protocol (ALPN)."""

    def __init__(self, settings: TlsSettings) -> None:
        """Read the files. Raises StartupError: which of them cannot be used, and why."""
        self._settings = settings
        self._seen = self._stamps()
        self._current = self._read()
        self._fronts = {protocol: self._front(protocol) for protocol in (HTTP, GRPC)}

    def context(self, protocol: str) -> ssl.SSLContext:
        """What a server listens with."""
        return self._fronts[protocol]

    async def watch(self) -> None:
        """Look at the files every two seconds, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            if self._stamps() != self._seen:
                self.reload()

    def reload(self) -> None:
        """Take the files up as they are; ones that cannot be used are told of in the log, and the old ones stay in force."""
        self._seen = self._stamps()
        try:
            self._current = self._read()
        except StartupError as exc:
            _log.error("the TLS files have changed and cannot be used, the old ones stay in force: %s", exc)
        else:
            _log.info("TLS certificate taken up", extra={"file": str(self._settings.tls_certificate)})

    def _front(self, protocol: str) -> ssl.SSLContext:
        front = self._make(protocol, AnsweringContext(ssl.PROTOCOL_TLS_SERVER))

        def switch(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
            connection.context = self._current[protocol]

        front.sni_callback = switch
        return front

    def _read(self) -> dict[str, ssl.SSLContext]:
        return {protocol: self._make(protocol, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) for protocol in (HTTP, GRPC)}

    def _make(self, protocol: str, context: ssl.SSLContext) -> ssl.SSLContext:
        settings = self._settings
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([protocol])
        context.options |= ssl.OP_NO_RENEGOTIATION
        certificate, key = _required(settings.tls_certificate, "--tls-certificate"), _required(settings.tls_key, "--tls-key")
        try:
            context.load_cert_chain(certificate, key, password=_refuse_passphrase)
        except (OSError, ValueError) as exc:
            raise StartupError(f"--tls-certificate {certificate} and --tls-key {key}: {_describe(exc)}") from exc
        if settings.tls_client_ca is not None:
            self._demand_client_certificates(context, settings.tls_client_ca)
        return context

    def _demand_client_certificates(self, context: ssl.SSLContext, authorities: Path) -> None:
        try:
            context.load_verify_locations(authorities)
        except (OSError, ValueError) as exc:
            raise StartupError(f"--tls-client-ca {authorities}: {_describe(exc)}") from exc
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session shows no certificate, so one whose authority is accepted no longer would still come in.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        """What tells a changed file, through links (as Kubernetes' secrets are): another one, another time or another size."""
        settings = self._settings
        return [_stamp(path) for path in (settings.tls_certificate, settings.tls_key, settings.tls_client_ca) if path is not None]


def make_tls(settings: TlsSettings) -> Tls | None:
    """None when TLS is off. Raises StartupError: a file is unusable, or what is given makes no whole."""
    if settings.tls_is_on:
        return Tls(settings)
    for path, flag in ((settings.tls_key, "--tls-key"), (settings.tls_client_ca, "--tls-client-ca")):
        if path is not None:
            raise StartupError(f"{flag} {path} is without use: --tls-certificate, which turns TLS on, is not given")
    return None


def _required(path: Path | None, flag: str) -> Path:
    if path is None:
        raise StartupError(f"{flag} is missing: TLS needs a certificate and its key")
    return path


def _refuse_passphrase() -> str:
    raise ValueError("the key is protected by a passphrase, which nobody is there to type; store it without one")


def _describe(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        reason = error.reason or "not PEM, or damaged"
        return "the key is not the certificate's" if reason == "KEY_VALUES_MISMATCH" else f"cannot be read as PEM ({reason})"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
