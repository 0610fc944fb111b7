"""Whether an address may be listened on: beyond loopback only with authentication."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`; a name other than `localhost` counts as reachable from elsewhere."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def refusal(host: str, *, setting: str, authentication_is_configured: bool) -> str | None:
    """Why `host` must not be listened on, or None when it may be."""
    if is_loopback(host) or authentication_is_configured:
        return None
    return (
        f"{setting} {host}: listening beyond loopback without authentication is refused, since anyone who can connect could run "
        "inference and, over the admin API, load code; use 127.0.0.1 and reach it through an authenticating proxy or a tunnel, or, for the "
        "data ports, demand client certificates (--tls-client-ca)"
    )
