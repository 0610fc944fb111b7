"""A streamed response in Triton's form, and its chunks."""

from __future__ import annotations

from tests.wire.gateway import Client

BODY = b'{"text":"hello","count":3}'
EVENTS = [b'data: {"text":"a"}\n\n', b'data: {"text":"b"}\n\n']


async def chunk(client: Client) -> bytes:
    size = int(await client.reader.readuntil(b"\r\n"), 16)
    piece = await client.reader.readexactly(size)
    assert await client.reader.readexactly(2) == b"\r\n"
    return piece
