from __future__ import annotations

import socket

import pytest

from control_plane.adapters.listening import allow_restart, bind_tcp, url_of
from control_plane.domain.errors import StartupError


def taken_port(bound: socket.socket) -> int:
    port: int = bound.getsockname()[1]
    return port


@pytest.mark.parametrize("is_listening", [False, True], ids=["another that has only bound it", "another that listens"])
def test_a_taken_port_is_told_at_once(is_listening: bool) -> None:
    with bind_tcp("127.0.0.1", 0, setting="--http-port") as first:
        if is_listening:
            allow_restart(first).listen()
        port = taken_port(first)
        with pytest.raises(StartupError, match=f"port {port} on 127.0.0.1 is taken.*another with --admin-port"):
            bind_tcp("127.0.0.1", port, setting="--admin-port")


def test_nobody_can_connect_before_it_listens() -> None:
    with bind_tcp("127.0.0.1", 0, setting="--http-port") as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", taken_port(bound)))


def test_the_next_life_binds_it_while_old_connections_are_still_closing() -> None:
    with bind_tcp("127.0.0.1", 0, setting="--http-port") as first:
        port = taken_port(first)
        allow_restart(first).setblocking(True)
        first.listen()
        with socket.create_connection(("127.0.0.1", port)):
            first.accept()[0].close()  # the end that closes first keeps the port in TIME_WAIT
    bind_tcp("127.0.0.1", port, setting="--http-port").close()


def test_it_is_made_for_an_event_loop() -> None:
    with bind_tcp("127.0.0.1", 0, setting="--http-port") as bound:
        assert not bound.getblocking()


def test_port_zero_chooses_a_free_one() -> None:
    with bind_tcp("127.0.0.1", 0, setting="--http-port") as one, bind_tcp("127.0.0.1", 0, setting="--http-port") as other:
        assert 0 != taken_port(one) != taken_port(other) != 0


@pytest.mark.parametrize(
    ("host", "text"),
    [
        pytest.param("no-such-host.invalid", "--http-port: no-such-host.invalid is not an address of this machine", id="an unknown name"),
        pytest.param("192.0.2.1", "cannot listen on 192.0.2.1:0", id="another machine's address"),
    ],
)
def test_a_wrong_host_is_named(host: str, text: str) -> None:
    with pytest.raises(StartupError, match=text):
        bind_tcp(host, 0, setting="--http-port")


@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "http://127.0.0.1:{}"), ("::1", "http://[::1]:{}")])
def test_url(host: str, url: str) -> None:
    with bind_tcp(host, 0, setting="--http-port") as bound:
        assert url_of(bound, "http") == url.format(taken_port(bound))
