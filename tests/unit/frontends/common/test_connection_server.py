from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import socket
import struct
import time
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

import pytest

from control_plane.core.errors import ControlPlaneError
from control_plane.frontends.common.connection_server import ConnectionServer, process_of
from control_plane.frontends.common.read_scheduler import ReadScheduler
from control_plane.host.network.listening import bind_tcp


@dataclass(frozen=True)
class Limits:
    max_connections: int = 2
    header_timeout_s: float = 10.0
    body_timeout_s: float = 10.0
    idle_timeout_s: float = 10.0
    source_share: float = 1.0
    trusted_proxies: tuple[IPv4Network, ...] = ()


class Connection:
    def __init__(self, *, is_idle: bool = False) -> None:
        self.told: list[str] = []
        self.is_idle = is_idle

    def enforce_timeouts(self, now_s: float) -> None:
        self.told.append("enforce_timeouts")

    def leave(self) -> None:
        self.told.append("leave")

    def refuse_rest(self, error: ControlPlaneError) -> None:
        self.told.append(str(error))

    def abort(self) -> None:
        self.told.append("abort")


async def test_more_than_the_limit_are_refused_until_one_has_closed() -> None:
    server: ConnectionServer[Connection] = ConnectionServer(Limits())
    first, second, third = Connection(), Connection(), Connection()
    assert [server.opened(each, "192.0.2.1") for each in (first, second, third)] == [True, True, False]
    server.closed(first)
    assert server.opened(third, "192.0.2.1")


async def test_one_source_leaves_room_for_others() -> None:
    server: ConnectionServer[Connection] = ConnectionServer(Limits(max_connections=8, source_share=0.75))
    held = [Connection() for _ in range(8)]
    assert [server.opened(each, "192.0.2.1") for each in held] == [True] * 6 + [False] * 2
    assert server.opened(Connection(), "192.0.2.2")
    for each in held:  # also those that were refused: their end is told as well
        server.closed(each)
    assert len(server._held) == 1
    assert server.opened(Connection(), "192.0.2.1")


class TestRoomForASourceThatHasItsShare:
    """One that fills its share with idle connections would shut out its own health checks."""

    LIMITS = Limits(max_connections=40, source_share=0.5)

    async def test_the_oldest_idle_connection_makes_room(self) -> None:
        server: ConnectionServer[Connection] = ConnectionServer(self.LIMITS)
        busy, idle, later = Connection(), Connection(is_idle=True), [Connection(is_idle=True) for _ in range(18)]
        assert all(server.opened(each, "192.0.2.1") for each in (busy, idle, *later))
        assert server.opened(Connection(), "192.0.2.1")
        assert [each.told for each in (busy, idle, *later)] == [[], ["abort"], *[[]] * 18]
        server.closed(idle)  # its transport tells once more
        assert len(server._held) == 20

    async def test_none_is_closed_for_another_source(self) -> None:
        server: ConnectionServer[Connection] = ConnectionServer(Limits(max_connections=2))
        held = [Connection(is_idle=True) for _ in range(2)]
        assert all(server.opened(each, "192.0.2.1") for each in held)
        assert not server.opened(Connection(), "192.0.2.2")
        assert [each.told for each in held] == [[], []]

    async def test_with_all_busy_a_newcomer_costs_few_looks_and_those_move_on(self) -> None:
        looks: list[int] = []

        class Busy(Connection):
            def __init__(self, number: int) -> None:
                self.told, self.number = [], number

            @property
            def is_idle(self) -> bool:  # type: ignore[override]
                looks.append(self.number)
                return False

        server: ConnectionServer[Connection] = ConnectionServer(self.LIMITS)
        assert all(server.opened(Busy(number), "192.0.2.1") for number in range(20))
        assert not server.opened(Connection(), "192.0.2.1")
        assert looks == list(range(8))
        assert not server.opened(Connection(), "192.0.2.1")
        assert looks == list(range(16))


@pytest.mark.virtual_time
async def test_that_it_refuses_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        server: ConnectionServer[Connection] = ConnectionServer(Limits(max_connections=0))
        await asyncio.sleep(100)
        for _ in range(50):
            server.opened(Connection(), "192.0.2.1")
        assert caplog.text.count("connections are refused") == 1
        await asyncio.sleep(61)
        server.opened(Connection(), "192.0.2.1")
        assert caplog.text.count("connections are refused") == 2


@pytest.mark.virtual_time
async def test_a_drain_asks_first_and_cuts_off_what_stays() -> None:
    server: ConnectionServer[Connection] = ConnectionServer(Limits())
    stays = Connection()
    server.opened(stays, "192.0.2.1")
    await server.drain(5.0)
    assert stays.told == ["leave", "the gateway is stopping; try again shortly", "abort"]
    assert not server.opened(Connection(), "192.0.2.1")
    assert asyncio.get_running_loop().time() == pytest.approx(5.5)


@pytest.mark.virtual_time
async def test_a_drain_that_is_announced_still_accepts() -> None:
    server: ConnectionServer[Connection] = ConnectionServer(Limits())
    server.announce_drain()
    late = Connection()
    assert (server.is_draining, server.opened(late, "192.0.2.1"), late.told) == (True, True, [])


@pytest.mark.virtual_time
async def test_a_second_drain_with_less_time_cuts_the_first_short() -> None:
    server: ConnectionServer[Connection] = ConnectionServer(Limits())

    class Stays(Connection):
        def abort(self) -> None:
            super().abort()
            server.closed(self)

    server.opened(Stays(), "192.0.2.1")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.drain(1000.0))
        await asyncio.sleep(1.0)
        await server.drain(0.0)
    assert asyncio.get_running_loop().time() == pytest.approx(1.5)


async def test_a_drain_waits_no_longer_than_for_the_last() -> None:
    server: ConnectionServer[Connection] = ConnectionServer(Limits())

    class Leaves(Connection):
        def leave(self) -> None:
            super().leave()
            server.closed(self)

    leaves = Leaves()
    server.opened(leaves, "192.0.2.1")
    await server.drain(1000.0)
    assert leaves.told == ["leave"]


@pytest.mark.virtual_time
async def test_the_time_of_many_connections_is_looked_at_a_few_in_a_turn() -> None:
    server: ConnectionServer[Connection] = ConnectionServer(Limits(max_connections=1_000))
    connections = [Connection() for _ in range(500)]
    for each in connections:
        server.opened(each, "192.0.2.1")
    closed = connections.pop()
    server._sweep()
    server.closed(closed)
    told: list[int] = []
    while sum(told) < len(connections):
        told.append(sum(len(each.told) for each in connections) - sum(told))
        await asyncio.sleep(0)
    assert max(told) <= 32
    await asyncio.sleep(0.9)
    assert [each.told for each in connections] == [["enforce_timeouts"]] * len(connections)
    await asyncio.sleep(0.2)
    assert [each.told for each in connections] == [["enforce_timeouts"] * 2] * len(connections)
    assert len(closed.told) <= 1
    await server.drain(0.0)


async def test_of_connections_with_many_calls_fewer_are_looked_at_in_a_turn() -> None:
    clock = [0.0]
    server: ConnectionServer[Connection] = ConnectionServer(Limits(max_connections=10), ReadScheduler(now_s=lambda: clock[0]))

    class Laden(Connection):
        def enforce_timeouts(self, now_s: float) -> None:
            super().enforce_timeouts(now_s)
            clock[0] += 0.002

    connections = [Laden() for _ in range(5)]
    for each in connections:
        server.opened(each, "192.0.2.1")
    server._sweep()
    for count in range(1, 6):
        assert sum(len(each.told) for each in connections) == count, "one in each turn, as each takes longer than a turn may"
        await asyncio.sleep(0)
    for each in connections:
        server.closed(each)
    await server.drain(0.0)


class Accepted(Connection, asyncio.Protocol):
    """A connection that a server has accepted itself."""

    def __init__(self, server: ConnectionServer[Connection]) -> None:
        super().__init__()
        self.server = server

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        if not self.server.opened(self, "127.0.0.1"):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.closed(self)

    def leave(self) -> None:
        self.transport.close()


@pytest.mark.parametrize(
    ("per_s", "in_a_turn"),
    [pytest.param(1e9, 32, id="where turns are long many"), pytest.param(1e-9, 1, id="where they are short one")],
)
async def test_how_many_are_accepted_in_a_turn(per_s: float, in_a_turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control_plane.frontends.common.connection_server._ACCEPTED_PER_S", per_s)
    server: ConnectionServer[Connection] = ConnectionServer(Limits(max_connections=100))
    listening, accepted = bind_tcp("127.0.0.1", 0, setting="--http-port"), [0]
    take_on = server._take_on

    def counted(*connection: Any) -> None:
        accepted[-1] += 1
        take_on(*connection)

    monkeypatch.setattr(server, "_take_on", counted)
    async with asyncio.TaskGroup() as tasks:
        await server.accept_on(listening, lambda: Accepted(server), None, tasks)
        clients = [socket.create_connection(listening.getsockname()) for _ in range(80)]
        while len(server._connections) < len(clients):
            await asyncio.sleep(0)
            accepted.append(0)
            time.sleep(0.002)  # noqa: ASYNC251  # the loop's clock shows milliseconds
        await server.drain(60.0)
    first, *others = [each for each in accepted if each]
    assert (first, max(others)) == (32, in_a_turn)
    assert len(server._held) == 0
    for each in clients:
        each.close()


async def test_one_that_is_accepted_in_the_turn_in_which_a_drain_begins_is_closed() -> None:
    """A socket that nobody had would be closed some time later, with a ResourceWarning."""
    server: ConnectionServer[Connection] = ConnectionServer(Limits())
    listening, loop = bind_tcp("127.0.0.1", 0, setting="--http-port"), asyncio.get_running_loop()
    draining = list[asyncio.Task[None]]()
    with socket.create_connection(_listens(listening)) as client:
        client.setblocking(False)
        async with asyncio.TaskGroup() as tasks:

            def make() -> Accepted:
                draining.append(tasks.create_task(server.drain(60.0)))
                return Accepted(server)

            await server.accept_on(listening, make, None, tasks)
            with contextlib.suppress(ConnectionResetError):
                assert await loop.sock_recv(client, 1) == b""
            await asyncio.wait(draining)
    gc.collect()
    assert (len(draining), len(server._held)) == (1, 0)


def _listens(listening: socket.socket) -> Any:
    listening.listen(1)
    return listening.getsockname()


class Exhausted(socket.socket):
    """Listener of a process that has no more file descriptors for the next few accepts."""

    failures = 20

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def test_accepts_that_fail_again_and_again_are_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("control_plane.frontends.common.connection_server._ACCEPT_PAUSE_S", 0.001)
    server: ConnectionServer[Connection] = ConnectionServer(Limits())
    listening = Exhausted(fileno=bind_tcp("127.0.0.1", 0, setting="--http-port").detach())
    async with asyncio.TaskGroup() as tasks:
        await server.accept_on(listening, lambda: Accepted(server), None, tasks)
        with socket.create_connection(listening.getsockname()):
            while not server._connections:
                await asyncio.sleep(0.001)
        await server.drain(60.0)
    assert listening.failures == 0
    assert caplog.text.count("Too many open files") == 1


async def test_clients_that_reset_their_connections_before_they_are_accepted_cost_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    server: ConnectionServer[Connection] = ConnectionServer(Limits(max_connections=100))
    listening = bind_tcp("127.0.0.1", 0, setting="--http-port")
    listening.listen(100)
    for _ in range(40):
        with socket.create_connection(listening.getsockname()) as hasty:
            hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    async with asyncio.TaskGroup() as tasks:
        with socket.create_connection(listening.getsockname()) as client:
            await server.accept_on(listening, lambda: Accepted(server), None, tasks)
            while [each.transport.get_extra_info("peername") for each in server._connections] != [client.getsockname()]:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            assert len(server._held) == 1
        await server.drain(60.0)
    assert not caplog.records


class LocalTransport(asyncio.Transport):
    """Transport of a Unix socket, with this process at its other end."""

    def __init__(self, process: int) -> None:
        ours, self.theirs = socket.socketpair()
        super().__init__({"socket": ours, "peername": ""})
        self.ours, self.process = ours, process
        self.protocol: asyncio.BaseProtocol | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else super().get_extra_info(name, default)

    @property
    def family(self) -> int:
        return self.ours.family

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        _, user, group = struct.unpack("3i", self.ours.getsockopt(level, option, size))
        return struct.pack("3i", self.process, user, group)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


async def test_of_a_unix_sockets_clients_only_the_process_that_breaks_the_protocol_waits() -> None:
    server: ConnectionServer[Connection] = ConnectionServer(Limits())

    def waits(process: int) -> bool:
        connection, transport = Connection(), LocalTransport(process)
        assert server.opened(connection, "")
        server.begin_reading(connection, transport)
        if process == 1:
            server.breached(connection)
        server.closed(connection)
        transport.close()
        return transport.protocol is not None  # a stand-in has taken the connection's place

    assert [waits(1) for _ in range(21)] == [False] * 20 + [True]
    assert not waits(2)
    assert not server._processes


def test_a_process_is_known_by_its_unix_socket_only() -> None:
    with contextlib.closing(LocalTransport(17)) as local:
        assert process_of(local) == f"process 17 of user {os.getuid()}"
    with socket.socket() as of_tcp:
        assert process_of(asyncio.Transport({"socket": of_tcp})) is None
    assert process_of(asyncio.Transport({})) is None
