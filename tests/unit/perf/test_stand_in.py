"""The HTTP stand-in answers each request once, after its body, however its bytes are cut."""

from __future__ import annotations

import asyncio

from perf.peers.stand_in import StandIn

POST = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Written(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data


def connection() -> tuple[StandIn, Written]:
    transport, stand_in = Written(), StandIn(b"A")
    stand_in.connection_made(transport)
    return stand_in, transport


def test_any_cut() -> None:
    for cut in range(1, len(POST)):
        stand_in, written = connection()
        stand_in.data_received(POST[:cut])
        assert written.data == b"", cut
        stand_in.data_received(POST[cut:])
        assert written.data == b"A", cut


def test_byte_by_byte_and_several_on_one_connection() -> None:
    stand_in, written = connection()
    for byte in POST + GET + POST:
        stand_in.data_received(bytes([byte]))
    assert written.data == b"AAA"


def test_all_at_once() -> None:
    stand_in, written = connection()
    stand_in.data_received(GET + POST + POST)
    assert written.data == b"AAA"
