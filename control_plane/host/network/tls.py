"""TLS for the ports, with hot reload: certificate, key and client authorities are read again when their files
change.

A server keeps one context for its life, which asyncio cannot exchange. Each new connection is switched, at
its first message, to the context read last (`SSL_set_SSL_CTX`, in the server-name callback, which OpenSSL
calls with and without a name). So new connections get the new files, and older connections stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import NamedTuple

from control_plane.core.errors import StartupError
from control_plane.host.network.plain_text_on_tls import AnsweringContext
from control_plane.settings import TlsSettings

_log = logging.getLogger(__name__)

_CHECK_EVERY_S = 2.0

HTTP, GRPC = "http/1.1", "h2"
"""ALPN names (RFC 7301) of the protocols."""


class TlsOptions(NamedTuple):
    """Names of the options by which a port's TLS files are given, for messages."""

    certificate: str
    key: str
    client_ca: str


PUBLIC = TlsOptions("--tls-certificate", "--tls-key", "--tls-client-ca")
_ADMIN = TlsOptions("--admin-tls-cert", "--admin-tls-key", "--admin-tls-client-ca")


class Tls:
    """The TLS contexts of one process, one per protocol (ALPN), reloaded when their files change."""

    def __init__(self, settings: TlsSettings, options: TlsOptions = PUBLIC) -> None:
        """Read the files. Raises StartupError, which says which file cannot be used, by the name of its option, and why."""
        self._settings = settings
        self._options = options
        self._seen = self._stamps()
        self._current = self._read()
        self._fronts = {protocol: self._front(protocol) for protocol in (HTTP, GRPC)}

    def context(self, protocol: str) -> ssl.SSLContext:
        """Return the context that a server of this protocol listens with."""
        return self._fronts[protocol]

    async def watch(self) -> None:
        """Check the files for changes every two seconds, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            if self._stamps() != self._seen:
                self.reload()

    def reload(self) -> None:
        """Read the files again; if they cannot be used, log why and keep the old ones in force."""
        # Noted before reading: a change during the read is then seen at the next check.
        self._seen = self._stamps()
        try:
            self._current = self._read()
        except StartupError as exc:
            _log.error("the TLS files have changed and cannot be used, the old ones stay in force: %s", exc)
        else:
            _log.info("TLS certificate reloaded", extra={"file": str(self._settings.tls_certificate)})

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
        # In TLS 1.2 a client could have the server carry out one handshake after the other on a connection.
        context.options |= ssl.OP_NO_RENEGOTIATION
        options = self._options
        certificate, key = _required(settings.tls_certificate, options.certificate), _required(settings.tls_key, options.key)
        try:
            context.load_cert_chain(certificate, key, password=_refuse_passphrase)
        except (OSError, ValueError) as exc:
            raise StartupError(f"{options.certificate} {certificate} and {options.key} {key}: {reason_of(exc)}") from exc
        if settings.tls_client_ca is not None:
            self._demand_client_certificates(context, settings.tls_client_ca)
        return context

    def _demand_client_certificates(self, context: ssl.SSLContext, authorities: Path) -> None:
        try:
            context.load_verify_locations(authorities)
        except (OSError, ValueError) as exc:
            raise StartupError(f"{self._options.client_ca} {authorities}: {reason_of(exc)}") from exc
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session shows no certificate, so a client whose authority is no longer accepted would
        # still get in.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        """Return what identifies each file's content: inode, time and size, through links as Kubernetes'
        secrets use them.
        """
        settings = self._settings
        return [_stamp(path) for path in (settings.tls_certificate, settings.tls_key, settings.tls_client_ca) if path is not None]


def make_tls(settings: TlsSettings) -> Tls | None:
    """Make the TLS contexts; None if TLS is off. Raises StartupError for an unusable file, or a setting that
    is missing.
    """
    return _tls_of(settings, PUBLIC)


def make_admin_tls(settings: TlsSettings) -> Tls | None:
    """Make the TLS contexts of an admin port that has files of its own; None if it has what all ports have. Raises as `make_tls`."""
    own = TlsSettings(tls_certificate=settings.admin_tls_cert, tls_key=settings.admin_tls_key, tls_client_ca=settings.admin_tls_client_ca)
    return _tls_of(own, _ADMIN)


def _tls_of(settings: TlsSettings, options: TlsOptions) -> Tls | None:
    if settings.tls_is_on:
        return Tls(settings, options)
    for path, option in ((settings.tls_key, options.key), (settings.tls_client_ca, options.client_ca)):
        if path is not None:
            raise StartupError(f"{option} {path} has no effect: {options.certificate}, which turns TLS on, is not given")
    return None


def on_hangup(*used: Tls | None) -> None:
    """Carry out SIGHUP: read the TLS files again. Without TLS it is ignored; by default it would end the
    process.
    """
    for tls in used:
        if tls is not None:
            tls.reload()
    if not any(used):
        _log.info("SIGHUP is ignored: it reads the TLS files again, and TLS is off (see --tls-certificate)")


def _required(path: Path | None, flag: str) -> Path:
    if path is None:
        raise StartupError(f"{flag} is missing: TLS needs a certificate and its key")
    return path


def _refuse_passphrase() -> str:
    raise ValueError("the key is protected by a passphrase, which a server cannot ask for; store it without one")


def reason_of(error: OSError | ValueError) -> str:
    """Why a TLS file cannot be used, in words for whoever named it."""
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
