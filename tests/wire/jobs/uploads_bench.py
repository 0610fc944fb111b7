"""Refusals of large bodies."""

from __future__ import annotations

from tests.wire.gateway import Answer, Client


async def refused(client: Client, *pieces: bytes) -> Answer:
    """Send an upload that is refused before it is whole: it is told so, and the connection is closed."""
    for piece in pieces:
        client.writer.write(piece)
    answer = await client.answer()
    assert answer.says_close
    assert await client.is_closed_by_server()
    return answer
