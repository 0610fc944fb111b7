"""Register of the streamed responses under way: they show that a copy of a model computes while it answers no new request, and are ended
when its process dies.

A model that generates one answer after the other, or all of whose places are taken, lets others wait for as long as its streams
take. Both watches for models that hang ask it (`triton/silence_watch`, `fleet/routing/model_router`). Triton (24.10) tells a
decoupled model's callers nothing of the death of its process: their responses would never go on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Protocol, TypeVar

from control_plane.concurrency.abort_scope import AbortScope
from control_plane.core.errors import Recall, RecallCause, UpstreamUnavailable

AnswerT = TypeVar("AnswerT")

MOST_SUSPECTS = 8
"""So many of the oldest requests at a copy of a model may have been in the process that died: Triton takes them in their
order, a batch at a time. Suspects are sent one by one, so it must not be all that waited there."""
_PAUSE_S = 10.0
"""Longest pause within a stream that goes on: while a long prompt is read, others may get no token for seconds."""


class OpenStream(Protocol):
    """A streamed response that has begun."""

    @property
    def heard_s(self) -> float:
        """When something of it last came from Triton, in the loop's time."""

    def fail(self, error: UpstreamUnavailable) -> None:
        """End it: whoever reads it gets this error in place of what has not come."""


class OpenStreams:
    """Register of one process's streamed responses, by server and model."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the event loop's time."""
        self._now_s = now_s
        self._streams = defaultdict[tuple[str, str], dict[int, OpenStream]](dict)
        self._awaited = defaultdict[tuple[str, str], dict[AbortScope, None]](dict)
        """Those of which nothing has come yet, in the order in which they were sent."""

    async def begin(self, server: str, model: str, sent: Awaitable[AnswerT]) -> AnswerT:
        """Await a response's first piece. Raises UpstreamUnavailable, if the model's process dies meanwhile, and what `sent` raises."""
        key, scope = (server, model), AbortScope()
        async with scope:
            self._awaited[key][scope] = None
            try:
                return await sent
            finally:
                del self._awaited[key][scope]
                if not self._awaited[key]:
                    del self._awaited[key]

    def add(self, server: str, model: str, stream: OpenStream) -> Callable[[], None]:
        """Register a response that has begun; what is returned removes it, and is idempotent."""
        self._streams[server, model][id(stream)] = stream
        return partial(self._remove, (server, model), id(stream))

    def _remove(self, key: tuple[str, str], stream: int) -> None:
        streams = self._streams.get(key)
        if streams is not None and streams.pop(stream, None) is not None and not streams:
            del self._streams[key]

    def died(self, server: str, model: str) -> None:
        """End the responses of a model whose process there has died, or was ended."""
        for number, scope in enumerate(self._awaited.get((server, model), {})):
            # This may be told time and again while it is loaded anew: only the first error counts.
            scope.abort(lost_with(model, server, is_suspect=number < MOST_SUSPECTS))
        for stream in list(self._streams.get((server, model), {}).values()):
            stream.fail(lost_with(model, server))

    def go_on(self, server: str, model: str) -> bool:
        """Whether a response of the model there has gone on lately."""
        return self._have_gone_on(self._streams.get((server, model), {}))

    def going_on(self) -> Iterator[tuple[str, str]]:
        """Yield each server and model of which a response has gone on lately."""
        return (key for key, streams in self._streams.items() if self._have_gone_on(streams))

    def _have_gone_on(self, streams: dict[int, OpenStream]) -> bool:
        since_s = self._now_s() - _PAUSE_S
        return any(stream.heard_s >= since_s for stream in streams.values())


def lost_with(model: str, server: str, *, is_suspect: bool = True) -> UpstreamUnavailable:
    """Return the error of what was under way at a model whose process has died; `is_suspect`: maybe in that process."""
    recall = Recall(RecallCause.STUB_DIED, is_suspect)
    return UpstreamUnavailable(f"the Python process of '{model}' on server '{server}' has died; try again shortly", recall=recall)
