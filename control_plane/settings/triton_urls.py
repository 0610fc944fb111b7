"""Parses the URLs of attached Tritons, from `--triton-url` and from the entries of `--servers-file`."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from control_plane.core.endpoints import ListedServer, TritonEndpoints, server_names
from control_plane.core.errors import StartupError
from control_plane.core.names import POOL_NAME
from control_plane.core.text.redaction import without_user
from control_plane.settings.fields import is_utf8_encodable, split_names

POOL = POOL_NAME
"""Pattern that a pool's name must match."""

_PORTS = {"grpc_port", "metrics_port"}
_KEYS = {*_PORTS, "grpc_scheme", "node"}
_GRPC_SCHEMES = {"grpc": False, "grpcs": True}
_MAX_PORT = 65535


def parse_triton_urls(urls: str) -> list[ListedServer]:
    """Parse a comma-separated list of Triton URLs. Raises StartupError, also when two of them name the same
    Triton.
    """
    # Passwords may contain commas, so a text with credentials is not split: the error below would show half
    # of one.
    each = [urls] if "@" in urls else split_names(urls)
    found = [_parse(url, "--triton-url", {*_KEYS, "pool"}) for url in each]
    if len({endpoints.address for endpoints, _ in found}) < len(found):
        raise StartupError(f"--triton-url {without_user(urls)!r} names a Triton twice")
    return [ListedServer(name, endpoints, pool) for name, (endpoints, pool) in zip(server_names(len(found)), found, strict=True)]


def parse_triton_url(url: str, *, setting: str = "--triton-url") -> TritonEndpoints:
    """Parse `http[s]://HOST:PORT[?grpc_port=N&metrics_port=N&grpc_scheme=grpc[s]]`. Raises StartupError, which
    names the setting.
    """
    return _parse(url, setting, _KEYS)[0]


def _parse(url: str, setting: str, known: set[str]) -> tuple[TritonEndpoints, str]:
    """Return the URL's endpoints and its pool (empty where none is given); `known` are the query keys that it
    may have.
    """
    shown = f"{setting} {without_user(url)!r}"
    expected = f"expected http[s]://HOST:HTTP_PORT[?{'&'.join(f'{name}={_FORMS[name]}' for name in sorted(known))}]"
    if "@" in url or not is_utf8_encodable(url):
        raise StartupError(f"{shown}: {expected}")
    try:
        parts = urlsplit(url)
        values = {name: each[-1] for name, each in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()}
        ports = {name: int(value) for name, value in values.items() if name in _PORTS}
        http_port = parts.port or 8000
    except ValueError as exc:
        raise StartupError(f"{shown}: {exc}; {expected}") from None
    pool, node = values.get("pool", ""), values.get("node", "")
    has_more = parts.fragment or parts.path not in ("", "/") or values.keys() - known
    grpc_scheme = values.get("grpc_scheme", "grpcs" if parts.scheme == "https" else "grpc")
    is_wrong = parts.scheme not in ("http", "https") or grpc_scheme not in _GRPC_SCHEMES
    if is_wrong or not parts.hostname or has_more or (pool and not POOL.fullmatch(pool)):
        raise StartupError(f"{shown}: {expected}")
    grpc_port, metrics_port = ports.get("grpc_port", http_port + 1), ports.get("metrics_port", http_port + 2)
    if not all(0 < port <= _MAX_PORT for port in (grpc_port, metrics_port)):
        raise StartupError(f"{shown}: a port is beyond 1-{_MAX_PORT}; grpc_port and metrics_port default to the next two")
    if node and not _is_place(node):
        raise StartupError(f"{shown}: node should be HOST:PORT of a `tidegate node`, such as 10.0.0.5:8500")
    endpoints = TritonEndpoints(
        host=parts.hostname,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        http_is_tls=parts.scheme == "https",
        grpc_is_tls=_GRPC_SCHEMES[grpc_scheme],
        node=node,
    )
    return endpoints, pool


def split_place(place: str) -> tuple[str, int]:
    """Split `HOST:PORT`, with an IPv6 address in brackets. Raises ValueError."""
    parts = urlsplit(f"//{place}")
    if not parts.hostname or not parts.port or parts.path or parts.query or parts.fragment:
        raise ValueError(f"{place!r} is not HOST:PORT")
    return parts.hostname, parts.port


def _is_place(text: str) -> bool:
    try:
        return bool(split_place(text))
    except ValueError:
        return False


_FORMS = {"grpc_port": "N", "grpc_scheme": "grpc|grpcs", "metrics_port": "N", "node": "HOST:PORT", "pool": "NAME"}
