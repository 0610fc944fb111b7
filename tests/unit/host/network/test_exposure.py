from __future__ import annotations

import pytest

from control_plane.host.network.exposure import AllowedHosts, allowed_hosts, is_loopback, refusal

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


@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"LocalHost:8000",
        b"127.0.0.1",
        b"127.8.9.10:1",
        b"[::1]",
        b"[::1]:8000",
        b"[0:0:0:0:0:0:0:1]:8000",
        b" localhost:8000 ",
        b"tidegate.internal:80",
        b"Tidegate.Internal",
        None,
    ],
)
def test_hosts_that_are_answered(host: bytes | None) -> None:
    hosts = AllowedHosts(["Tidegate.internal"])
    for _ in range(2):
        assert hosts.refusal(host, None) is None


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example",
        b"evil.example:8000",
        b"localhost.evil.example",
        b"127.0.0.1.evil.example",
        b"tidegate.internal.evil.example",
        b"localhost@evil.example",
        b"evil.example#localhost",
        b"localhost, evil.example",
        b"localhost evil.example",
        b"localhost:8000:80",
        b"localhost:x",
        b"[::1",
        b"::1",
        b"[::1]evil.example",
        b"[fe80::1]",
        b"[::ffff:10.0.0.1]",
        b"0.0.0.0:8000",
        b"10.0.0.1",
        b"2130706433",
        b"0x7f000001",
        b"127.1",
        b"",
        b":8000",
        b"\xff",
        b"a" * 100_000,
    ],
)
def test_hosts_that_are_not(host: bytes) -> None:
    hosts = AllowedHosts(["tidegate.internal"])
    for _ in range(2):
        reason = hosts.refusal(host, None)
        assert reason is not None
        assert "TIDEGATE_ALLOWED_HOSTS" in reason
        assert len(reason) < 800


@pytest.mark.parametrize(
    ("fetch_site", "is_refused"),
    [(None, False), (b"none", False), (b"same-origin", False), (b"same-site", False), (b"cross-site", True), (b" Cross-Site ", True)],
)
def test_what_a_browser_says_of_the_page_that_asks(fetch_site: bytes | None, is_refused: bool) -> None:
    assert (AllowedHosts().refusal(b"localhost:8000", fetch_site) is not None) is is_refused


def test_what_is_remembered_of_hosts_is_bounded() -> None:
    hosts = AllowedHosts()
    for number in range(1000):
        assert hosts.refusal(b"127.0.0.1:%d" % number, None) is None
    assert len(hosts._remembered) == 64


@pytest.mark.parametrize(
    ("host", "authentication", "is_checked"),
    [("127.0.0.1", False, True), ("localhost", False, True), ("::1", False, True), ("127.0.0.1", True, False), ("0.0.0.0", False, False)],
)
def test_only_ports_on_loopback_without_authentication_check_hosts(host: str, authentication: bool, is_checked: bool) -> None:
    assert (allowed_hosts(host, [], authentication=authentication) is not None) is is_checked
