from __future__ import annotations

import asyncio

from control_plane.concurrency.paced_writes import PIECE_BYTES, PacedWriter
from tests.aio import settle
from tests.unit.frontends.frontend_ends import Transport

SMALL, LARGE = b"small", b"\1" * (2 * PIECE_BYTES + 10)


async def test_what_is_small_is_written_at_once_and_together() -> None:
    transport = Transport()
    writer = PacedWriter(transport)
    writer.write([SMALL, memoryview(SMALL)])
    assert (transport.written, transport.writes, bool(writer.left)) == (SMALL + SMALL, 1, False)


async def test_of_what_is_large_a_piece_is_written_in_a_turn_and_all_in_order() -> None:
    transport = Transport()
    writer = PacedWriter(transport)
    writer.write([SMALL, LARGE, SMALL])
    writer.write([SMALL])
    sizes = [len(transport.written)]
    while writer.left:
        await asyncio.sleep(0)
        sizes.append(len(transport.written) - sum(sizes))
    assert sizes == [PIECE_BYTES, PIECE_BYTES, 10 + 3 * len(SMALL)]
    assert transport.written == SMALL + LARGE + SMALL + SMALL


async def test_nothing_is_written_while_the_socket_takes_nothing_and_one_piece_in_a_turn_afterwards() -> None:
    transport = Transport()
    writer = PacedWriter(transport)
    writer.write([LARGE])
    writer.pause()
    writer.write([SMALL])
    await settle()
    assert len(transport.written) == PIECE_BYTES
    writer.resume()
    writer.pause()
    writer.resume()
    await asyncio.sleep(0)
    assert len(transport.written) == 2 * PIECE_BYTES
    await settle()
    assert transport.written == LARGE + SMALL


async def test_what_is_left_goes_with_the_connection() -> None:
    for end in (PacedWriter.clear, lambda writer: writer._transport.close()):
        transport, body = Transport(), bytearray(LARGE)
        writer = PacedWriter(transport)
        writer.write([body])
        end(writer)
        await settle()
        assert (len(transport.written), bool(writer.left)) == (PIECE_BYTES, False)
        body.clear()  # it is not kept
