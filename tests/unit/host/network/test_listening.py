from __future__ import annotations

import select
import socket

import pytest

from control_plane.core.errors import StartupError
from control_plane.host.network.listening import address_of, allow_restart, bind_shared_tcp, bind_tcp, port_of, share_port, url_of


@pytest.mark.parametrize("is_listening", [False, True], ids=["another that has only bound it", "another that listens"])
def test_a_taken_port_is_told_at_once(is_listening: bool) -> None:
    with bind_tcp("127.0.0.1", 0, setting="--http-port") as first:
        if is_listening:
            allow_restart(first).listen()
        port = port_of(first)
        with pytest.raises(StartupError, match=f"port {port} on 127.0.0.1 is taken.*another with --admin-port"):
            bind_tcp("127.0.0.1", port, setting="--admin-port")


def test_nobody_can_connect_before_it_listens() -> None:
    with bind_tcp("127.0.0.1", 0, setting="--http-port") as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port_of(bound)))


def test_the_next_life_binds_it_while_old_connections_are_still_closing() -> None:
    with bind_tcp("127.0.0.1", 0, setting="--http-port") as first:
        port = port_of(first)
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
        assert 0 != port_of(one) != port_of(other) != 0


@pytest.mark.parametrize(
    ("host", "text"),
    [
        pytest.param("no-such-host.invalid", "--http-port: no-such-host.invalid is not an address of this machine", id="an unknown name"),
        pytest.param("gateway..invalid", "--http-port: gateway..invalid is not an address of this machine", id="an empty label"),
        pytest.param("192.0.2.1", "cannot listen on 192.0.2.1:0", id="another machine's address"),
    ],
)
def test_a_wrong_host_is_named(host: str, text: str) -> None:
    with pytest.raises(StartupError, match=text):
        bind_tcp(host, 0, setting="--http-port")


@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "http://127.0.0.1:{}"), ("::1", "http://[::1]:{}")])
def test_url(host: str, url: str) -> None:
    with bind_tcp(host, 0, setting="--http-port") as bound:
        assert url_of(bound, "http") == url.format(port_of(bound))


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1:{}"), ("::1", "[::1]:{}")])
def test_address(host: str, address: str) -> None:
    with bind_tcp(host, 0, setting="--grpc-port") as bound:
        assert address_of(bound) == address.format(port_of(bound))


class TestSharedPort:
    def test_is_shared_by_workers_and_the_parent_that_holds_it_gets_no_connection(self) -> None:
        with bind_tcp("127.0.0.1", 0, setting="--http-port") as held:
            share_port(held)
            port = port_of(held)
            with bind_shared_tcp("127.0.0.1", port, setting="-") as one, bind_shared_tcp("127.0.0.1", port, setting="-") as other:
                one.listen()
                other.listen()
                accepted = [self.accepted_by(one, other, port) for _ in range(64)]
            assert set(accepted) == {"one", "other"}
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))

    def accepted_by(self, one: socket.socket, other: socket.socket, port: int) -> str:
        with socket.create_connection(("127.0.0.1", port)):
            readable = select.select([one, other], [], [], 5)[0]
            readable[0].accept()[0].close()
        return "one" if readable == [one] else "other"

    def test_is_not_taken_by_another_gateway(self) -> None:
        with bind_tcp("127.0.0.1", 0, setting="--http-port") as held:
            share_port(held)
            with bind_shared_tcp("127.0.0.1", port_of(held), setting="-") as worker:
                worker.listen()
                with pytest.raises(StartupError, match="is taken"):
                    bind_tcp("127.0.0.1", port_of(held), setting="--http-port")

    def test_that_nobody_shares_is_not_taken_by_a_worker(self) -> None:
        with bind_tcp("127.0.0.1", 0, setting="--http-port") as held, pytest.raises(StartupError, match="is taken"):
            bind_shared_tcp("127.0.0.1", port_of(held), setting="--http-port")

    def test_is_free_for_the_next_life_while_connections_of_workers_are_still_closing(self) -> None:
        with bind_tcp("127.0.0.1", 0, setting="--http-port") as held:
            share_port(held)
            port = port_of(held)
            with bind_shared_tcp("127.0.0.1", port, setting="-") as worker:
                worker.setblocking(True)
                worker.listen()
                with socket.create_connection(("127.0.0.1", port)):
                    worker.accept()[0].close()
        bind_tcp("127.0.0.1", port, setting="--http-port").close()
