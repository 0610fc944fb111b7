"""Register of the streamed responses under way, which shows that a copy of a model computes while it answers no new request.

A model that generates one answer after the other, or all of whose places are taken, lets others wait for as long as its streams
take. Both watches for models that hang ask it (`triton/silence_watch`, `fleet/routing/model_router`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from control_plane.triton.ports import HttpStream

_PAUSE_S = 10.0
"""Longest pause within a stream that goes on: while a long prompt is read, others may get no token for seconds."""


class Heard(Protocol):
    """A streamed response, as far as it tells that its model computes."""

    @property
    def heard_s(self) -> float:
        """When something of it last came from Triton, in the loop's time."""


class OpenStreams:
    """Register of one process's streamed responses, by server and model."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the event loop's time."""
        self._now_s = now_s
        self._streams = defaultdict[tuple[str, str], dict[int, Heard]](dict)

    def add(self, server: str, model: str, stream: Heard) -> Callable[[], None]:
        """Register a response; what is returned removes it, and is idempotent."""
        self._streams[server, model][id(stream)] = stream
        return partial(self._remove, (server, model), id(stream))

    def _remove(self, key: tuple[str, str], stream: int) -> None:
        streams = self._streams.get(key)
        if streams is not None and streams.pop(stream, None) is not None and not streams:
            del self._streams[key]

    def go_on(self, server: str, model: str) -> bool:
        """Whether a response of the model there has gone on lately."""
        return self._have_gone_on(self._streams.get((server, model), {}))

    def going_on(self) -> Iterator[tuple[str, str]]:
        """Yield each server and model of which a response has gone on lately."""
        return (key for key, streams in self._streams.items() if self._have_gone_on(streams))

    def _have_gone_on(self, streams: dict[int, Heard]) -> bool:
        since_s = self._now_s() - _PAUSE_S
        return any(stream.heard_s >= since_s for stream in streams.values())


class HeldStream:
    """Streamed response (`triton/ports.HttpStream`) with what is to be done once it is closed."""

    def __init__(self, stream: HttpStream, *at_end: Callable[[], object]) -> None:
        self.status = stream.status
        self.head = stream.head
        self._stream = stream
        self._at_end = at_end

    async def receive(self) -> bytes | None:
        return await self._stream.receive()

    def close(self) -> None:
        self._stream.close()
        at_end, self._at_end = self._at_end, ()
        for each in at_end:
            each()
