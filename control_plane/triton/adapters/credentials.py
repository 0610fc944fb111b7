"""Credentials for Tritons that others run: TLS contexts for connections, gRPC's for channels, and header fields
from a file.

Used by the clients beside it; `app/upstreams/triton_instances` reads the header file. The files are read when a client is
made, so an error shows at the start.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import grpc

from control_plane.core.endpoints import Address, TcpAddress, UpstreamCredentials
from control_plane.core.errors import StartupError
from control_plane.host.bounded_file import read_bounded
from control_plane.host.network.tls import GRPC, reason_of

_FIELD = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)[ \t]*")
"""A header field in ASCII (RFC 9110, 5.5), which HTTP and gRPC metadata both can carry."""
_OURS = frozenset(("connection", "content-length", "content-type", "host", "te", "transfer-encoding", "user-agent"))
"""Fields that the clients write themselves."""
_MAX_BYTES = 16 * 2**10


def tls_context(address: Address, protocol: str, *, setting: str = "--triton-") -> ssl.SSLContext | None:
    """Make the TLS context for an address; None where it is plain text. Raises StartupError, whose text has `setting` before
    `ca`, `certificate` and `key`."""
    tls = address.tls if isinstance(address, TcpAddress) else None
    return None if tls is None else make_context(tls, protocol, setting=setting)


def make_context(credentials: UpstreamCredentials, protocol: str, *, setting: str = "--triton-") -> ssl.SSLContext:
    """Make the TLS context of connections that speak `protocol`. Raises StartupError: a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies the certificate and the host's name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([protocol])
    try:
        if credentials.ca:
            context.load_verify_locations(credentials.ca)
        else:
            context.load_default_certs()
    except (OSError, ValueError) as exc:
        raise StartupError(f"{setting}ca {credentials.ca}: {reason_of(exc)}") from exc
    if credentials.certificate or credentials.key:
        _show_certificate(context, credentials, setting)
    return context


def make_channel_credentials(credentials: UpstreamCredentials) -> grpc.ChannelCredentials:
    """Make the same for a gRPC channel. Raises StartupError."""
    make_context(credentials, GRPC)  # gRPC would fail at the first call only, and say less of why
    roots = credentials.ca or ssl.get_default_verify_paths().cafile
    return grpc.ssl_channel_credentials(
        root_certificates=Path(roots).read_bytes() if roots else None,
        private_key=Path(credentials.key).read_bytes() if credentials.key else None,
        certificate_chain=Path(credentials.certificate).read_bytes() if credentials.certificate else None,
    )


def read_headers(path: Path) -> tuple[tuple[str, str], ...]:
    """Read header fields from the lines `NAME: VALUE` of a file; names are returned in lower case. Raises
    StartupError, which never shows a value.
    """
    try:
        text = read_bounded(path, _MAX_BYTES)
    except OSError as exc:
        raise StartupError(f"--triton-header-file {path}: {exc.strerror}") from exc
    except ValueError as exc:
        raise StartupError(f"--triton-header-file {path} {exc}") from None
    lines = ((number, line.strip()) for number, line in enumerate(text.decode("latin-1").splitlines(), start=1))
    return tuple(_field(path, number, line) for number, line in lines if line)


def _field(path: Path, number: int, line: str) -> tuple[str, str]:
    found = _FIELD.fullmatch(line)
    if found is None:
        raise StartupError(f"--triton-header-file {path}: line {number} is not `NAME: VALUE` in ASCII")
    name = found[1].lower()
    if name in _OURS or name.startswith(("grpc-", ":")) or name.endswith("-bin"):
        raise StartupError(f"--triton-header-file {path}: line {number} sets {name}, which the gateway writes itself")
    return name, found[2]


def _show_certificate(context: ssl.SSLContext, credentials: UpstreamCredentials, setting: str) -> None:
    shown = f"{setting}certificate {credentials.certificate or '(not given)'} and {setting}key {credentials.key or '(not given)'}"
    if not credentials.certificate or not credentials.key:
        raise StartupError(f"{shown}: a certificate and its key are given together")
    try:
        context.load_cert_chain(credentials.certificate, credentials.key, password=_refuse_passphrase)
    except (OSError, ValueError) as exc:
        raise StartupError(f"{shown}: {reason_of(exc)}") from exc


def _refuse_passphrase() -> str:
    raise ValueError("the key is protected by a passphrase; store it without one")
