"""Secret and TLS contexts of the wire between nodes and gateways, from the files of the settings."""

from __future__ import annotations

import ssl

from control_plane.core.errors import StartupError
from control_plane.host.network.exposure import is_loopback
from control_plane.node.domain.handshake import MIN_SECRET_CHARACTERS
from control_plane.settings import NodeSettings
from control_plane.settings.fields import first_line


def read_secret(settings: NodeSettings) -> bytes | None:
    """Return the shared secret; None without one. Raises StartupError."""
    try:
        secret = first_line(settings.node_secret_file)
    except ValueError as exc:
        raise StartupError(f"--node-secret-file {settings.node_secret_file} {exc}") from None
    if secret is None:
        return None
    if len(secret) < MIN_SECRET_CHARACTERS:
        raise StartupError(
            f"--node-secret-file {settings.node_secret_file}: the secret has {len(secret)} characters, and needs {MIN_SECRET_CHARACTERS}; "
            "`openssl rand -hex 32` makes one"
        )
    return secret.encode()


def client_context(settings: NodeSettings) -> ssl.SSLContext | None:
    """Return the TLS context of gateways; None for plain text. Raises StartupError."""
    if settings.node_ca is None:
        if settings.node_certificate is not None:
            raise StartupError("--node-certificate has no effect for a gateway without --node-ca, which turns TLS to its nodes on")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies the certificate and the host's name
    _complete(context, settings)
    return context


def server_context(settings: NodeSettings) -> ssl.SSLContext | None:
    """Return the TLS context of a node; None for plain text. Raises StartupError: a file cannot be used, or the node
    would let anybody in."""
    if settings.node_certificate is None and settings.node_ca is not None:
        raise StartupError("--node-ca needs --node-certificate and --node-key: a node demands certificates over TLS only")
    if not is_loopback(settings.node_host) and settings.node_secret_file is None and settings.node_ca is None:
        raise StartupError(
            f"--node-host {settings.node_host}: a node beyond loopback that asks nobody who they are is refused, since whoever connects "
            "could load code; give --node-secret-file, or --node-certificate, --node-key and --node-ca"
        )
    if settings.node_certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _complete(context, settings)
    if settings.node_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session shows no certificate.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


def _complete(context: ssl.SSLContext, settings: NodeSettings) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    certificate, key = settings.node_certificate, settings.node_key
    if (certificate is None) != (key is None):
        raise StartupError("--node-certificate and --node-key are given together")
    try:
        if settings.node_ca is not None:
            context.load_verify_locations(settings.node_ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key, password=_refuse_passphrase)
    except (OSError, ValueError) as exc:
        files = ", ".join(str(each) for each in (settings.node_ca, certificate, key) if each is not None)
        raise StartupError(f"--node-ca, --node-certificate, --node-key ({files}): {exc}") from exc


def _refuse_passphrase() -> str:
    raise ValueError("the key is protected by a passphrase; store it without one")
