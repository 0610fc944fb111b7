from __future__ import annotations

import asyncio
from typing import Any, cast

from control_plane.frontends.common.breaches import Breaches, HeldBack


def breached(count: int, *, every_s: float = 0.0) -> Breaches:
    breaches = Breaches()
    for number in range(count):
        breaches.breached(1, number * every_s)
    return breaches


class TestPauses:
    def test_the_first_ones_cost_nothing(self) -> None:
        assert breached(19).pause_s(1, 0.0) == 0.0

    def test_once_there_are_more_each_new_connection_waits(self) -> None:
        breaches = breached(20)
        assert breaches.pause_s(1, 0.0) == 0.1
        assert breaches.pause_s(2, 0.0) == 0.0

    def test_after_a_while_without_any_it_is_over(self) -> None:
        breaches = breached(100)
        assert breaches.pause_s(1, 0.05) == 0.1
        assert breaches.pause_s(1, 0.1) == 0.0
        assert breaches.pause_s(1, 2.0) == 0.0
        assert not breaches.sources

    def test_who_is_wrong_five_times_a_second_never_waits(self) -> None:
        assert breached(500, every_s=0.2).pause_s(1, 500 * 0.2) == 0.0

    def test_no_number_of_sources_takes_memory_without_end(self) -> None:
        breaches = Breaches()
        for source in range(5000):
            breaches.breached(source, 0.0)
        assert len(breaches.sources) == 1024
        assert 4999 in breaches.sources


class Transport:
    def __init__(self) -> None:
        self.protocol: Any = None
        self.told: list[str] = []
        self.is_gone = False

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.told.append("pause")

    def resume_reading(self) -> None:
        self.told.append("resume")

    def is_closing(self) -> bool:
        return self.is_gone


class Connection:
    def __init__(self) -> None:
        self.told: list[object] = []

    def data_received(self, data: bytes) -> None:
        self.told.append(data)

    def eof_received(self) -> bool | None:
        self.told.append("eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")

    def pause_writing(self) -> None:
        self.told.append("pause writing")


def held_back() -> tuple[Transport, Connection]:
    transport, connection = Transport(), Connection()
    HeldBack(connection, cast("asyncio.Transport", transport), 0.0)
    return transport, connection


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0.001)


class TestHeldBack:
    async def test_what_comes_waits_and_nothing_more_is_read(self) -> None:
        transport, connection = held_back()
        transport.protocol.data_received(b"a")
        assert (transport.told, connection.told) == (["pause"], [])
        await turns()
        assert transport.protocol is connection
        assert (transport.told, connection.told) == (["pause", "resume"], [b"a"])

    async def test_who_says_nothing_is_read_afterwards(self) -> None:
        transport, connection = held_back()
        await turns()
        assert transport.protocol is connection
        assert (transport.told, connection.told) == ([], [])

    async def test_who_leaves_meanwhile_has_left(self) -> None:
        transport, connection = held_back()
        transport.protocol.data_received(b"a")
        transport.protocol.eof_received()
        transport.protocol.connection_lost(None)
        await turns()
        assert connection.told == ["eof", "lost"]

    async def test_one_that_is_being_closed_is_not_read(self) -> None:
        transport, connection = held_back()
        transport.protocol.data_received(b"a")
        transport.is_gone = True
        await turns()
        assert connection.told == []

    async def test_one_that_cannot_write_by_then_is_told_so_last(self) -> None:
        """It pauses its reading then, which is resumed before."""
        transport, connection = held_back()
        transport.protocol.data_received(b"a")
        transport.protocol.pause_writing()
        await turns()
        assert connection.told == [b"a", "pause writing"]

    async def test_one_that_can_write_again_is_told_nothing(self) -> None:
        transport, connection = held_back()
        transport.protocol.pause_writing()
        transport.protocol.resume_writing()
        await turns()
        assert connection.told == []
