"""Protection of ports without authentication: they listen on loopback only, and check the `Host` of requests.

The check of `Host` is against DNS rebinding: web pages whose name resolves to this machine. Pure decisions,
no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

_AUTHORITY = re.compile(rb"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::[0-9]{0,5})?")
_MAX_REMEMBERED = 64
"""Accepted values of `Host` kept to skip parsing; bounded, since clients choose the ports in them."""
_MAX_SHOWN = 100
_CROSS_SITE = "a web page of another site sent this request (Sec-Fetch-Site: cross-site), which is refused without authentication"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`; a name other than `localhost` counts as reachable from
    elsewhere.
    """
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def refusal(host: str, *, setting: str, authentication_is_configured: bool) -> str | None:
    """Return why the gateway must not listen on `host`, or None if it may."""
    if is_loopback(host) or authentication_is_configured:
        return None
    return (
        f"{setting} {host}: listening beyond loopback without authentication is refused, since anyone who can connect could run "
        "inference and, over the admin API, load code; use 127.0.0.1 and reach it through an authenticating proxy or a tunnel, or, for the "
        "data ports, demand client certificates (--tls-client-ca)"
    )


class AllowedHosts:
    """Host check of a port without authentication, as a defence against DNS rebinding.

    A web page whose own name resolves to this machine reaches ports on loopback as its own origin, but its
    requests carry that name as `Host`. Requests without `Host`, which HTTP/1.0 allows, never come from
    browsers.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names` are accepted besides those of loopback; they have no ports."""
        self._names = frozenset(name.lower().strip("[]") for name in names)
        self._remembered: set[bytes] = set()

    def refusal(self, host: bytes | None, fetch_site: bytes | None) -> str | None:
        """Return why a request with these values of `Host` (or `:authority`) and `Sec-Fetch-Site` is refused,
        else None.
        """
        if fetch_site is not None and fetch_site.strip().lower() == b"cross-site":
            return _CROSS_SITE
        if host is None or host in self._remembered:
            return None
        if not self._allows(host):
            return (
                f"Host {host[:_MAX_SHOWN].decode('latin-1')!r} is not a name of loopback; without authentication this port answers to "
                "localhost, 127.0.0.1 and [::1], and to names in TIDEGATE_ALLOWED_HOSTS, so that no web page reaches it under its own name"
            )
        if len(self._remembered) < _MAX_REMEMBERED:
            self._remembered.add(host)
        return None

    def _allows(self, host: bytes) -> bool:
        found = _AUTHORITY.fullmatch(host.strip())
        if found is None:
            return False
        name = (found.group(1) or found.group(2)).decode().lower()
        return name in self._names or is_loopback(name)


def allowed_hosts(host: str, names: Iterable[str], *, authentication: bool) -> AllowedHosts | None:
    """Make the host check of a port that listens on `host`; None where callers authenticate, which makes it
    needless.
    """
    return AllowedHosts(names) if is_loopback(host) and not authentication else None
