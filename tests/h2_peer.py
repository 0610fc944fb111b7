"""The `h2` library as a peer on a raw connection: another reading of HTTP/2 than ours, and frames that ours never sends."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import h2.config
import h2.connection
import h2.events
import h2.settings

EventT = TypeVar("EventT", bound=h2.events.Event)


class H2Peer:
    """One end of a connection. `state` is h2's; what it has to say goes out with `flush`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_client: bool) -> None:
        self.reader = reader
        self.writer = writer
        self.state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=is_client, header_encoding="utf-8"))
        self.events: list[h2.events.Event] = []
        self.reads_on = True
        """Whether room is given back for data as it comes."""

    async def start(self, *, settings: dict[int, int] | None = None) -> None:
        if settings is not None:
            self.state.local_settings = h2.settings.Settings(client=self.state.config.client_side, initial_values=settings)
            self.state.max_inbound_frame_size = self.state.local_settings.max_frame_size
        self.state.initiate_connection()
        await self.flush()

    async def flush(self) -> None:
        self.writer.write(self.state.data_to_send())
        await self.writer.drain()

    async def send_raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def wait_for(self, kind: type[EventT], *, stream_id: int | None = None) -> EventT:
        """The next event of a kind, taken out of those that have come; others stay."""
        while True:
            for event in self.events:
                if isinstance(event, kind) and (stream_id is None or getattr(event, "stream_id", None) == stream_id):
                    self.events.remove(event)
                    return event
            await self.read()

    async def read(self) -> None:
        """Take what comes next. Raises ConnectionError at the end."""
        data = await self.reader.read(1 << 16)
        if not data:
            raise ConnectionResetError("the other end closed")
        for event in self.state.receive_data(data):
            self.events.append(event)
            if isinstance(event, h2.events.DataReceived) and self.reads_on and event.flow_controlled_length:
                self.state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        await self.flush()

    async def is_closed(self) -> bool:
        """Wait for the other end to close."""
        try:
            while True:
                await self.read()
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.transport.abort()
        await asyncio.sleep(0)
