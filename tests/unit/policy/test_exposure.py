from __future__ import annotations

import pytest

from control_plane.policy.exposure import is_loopback, refusal

LOOPBACK = ["127.0.0.1", "127.8.9.10", "::1", "localhost"]
BEYOND = [
    "0.0.0.0",
    "::",
    "",
    "10.0.0.1",
    "example.com",
    "localhost.example.com",
    "LOCALHOST.",
    "fe80::1",
    "::ffff:10.0.0.1",
    "127.0.0.1.example.com",
]


@pytest.mark.parametrize(("host", "expected"), [*((host, True) for host in LOOPBACK), *((host, False) for host in BEYOND)])
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("host", LOOPBACK)
@pytest.mark.parametrize("authenticated", [False, True])
def test_loopback_is_never_refused(host: str, authenticated: bool) -> None:
    assert refusal(host, setting="--host", authentication_is_configured=authenticated) is None


@pytest.mark.parametrize("host", BEYOND)
def test_beyond_it_only_with_authentication(host: str) -> None:
    assert refusal(host, setting="--host", authentication_is_configured=True) is None
    reason = refusal(host, setting="--host", authentication_is_configured=False)
    assert reason is not None
    assert reason.startswith(f"--host {host}: listening beyond loopback without authentication is refused")
