"""An HTTP upstream that answers every request at once with the same bytes, after reading its whole body.

Takes the least a Python process can on uvloop. nginx's `return 200` would not do: it answers before an upload of 1 MB has been read, which
wrk does not expect, and its configuration cannot hold an answer of that size.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import re
from pathlib import Path
from typing import cast

import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class StandIn(asyncio.Protocol):
    """Connection of the stand-in server; requests have a Content-Length or no body."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._head = b""
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        while data:
            data = self._read_body(data) if self._missing else self._read_head(data)

    def _read_head(self, data: bytes) -> bytes:
        data = self._head + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._head = data
            return b""
        self._head, self._missing = b"", _body_length(data[:end])
        if self._missing == 0:
            self._transport.write(self._answer)
        return data[end + 4 :]

    def _read_body(self, data: bytes) -> bytes:
        taken = min(self._missing, len(data))
        self._missing -= taken
        if self._missing == 0:
            self._transport.write(self._answer)
        return data[taken:]


@functools.lru_cache
def _body_length(head: bytes) -> int:
    found = _LENGTH.search(head)
    return int(found.group(1)) if found else 0


async def main(port: int, answer: bytes) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: StandIn(answer), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--answer", type=Path, required=True, help="file with the answer's head and body")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(options.port, options.answer.read_bytes()))
