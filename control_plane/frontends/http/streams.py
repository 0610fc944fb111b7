"""Answers over HTTP that come piece by piece, for as long as their caller may have them; called by `frontends/kserve/http`."""

from __future__ import annotations

from collections.abc import Awaitable

import orjson

from control_plane.auth.stream_rights import Watch
from control_plane.core.errors import Unauthenticated
from control_plane.frontends.common.status import message_of
from control_plane.protocols.http1 import HttpAnswer
from control_plane.triton.ports import HttpStream

_IS_EVENTS = b"text/event-stream"


async def watched(asking: Awaitable[HttpAnswer | HttpStream], watch: Watch) -> HttpAnswer | HttpStream:
    """The answer that is asked for, watched to its end. Raises Unauthenticated: its caller's rights have ended before it began."""
    answer: HttpAnswer | HttpStream | None = None
    try:
        async with watch:
            answer = await asking
    except BaseException:
        watch.close()
        if answer is not None and not isinstance(answer, HttpAnswer):
            answer.close()
        raise
    if isinstance(answer, HttpAnswer):
        watch.close()
        return answer
    return _WatchedStream(answer, watch)


class _WatchedStream:
    """`triton/ports.HttpStream` that ends with an error event, as Triton tells of errors within a stream, when its caller's rights end."""

    def __init__(self, stream: HttpStream, watch: Watch) -> None:
        self.status = stream.status
        self.head = stream.head
        self._stream = stream
        self._watch = watch
        watch.on_end = stream.close  # at once, also while a client that does not read keeps this from being asked
        self._has_ended = False

    async def receive(self) -> bytes | None:
        """Raises Unauthenticated, too, where there are no events that could say it."""
        if self._has_ended:
            return None
        try:
            async with self._watch:
                return await self._stream.receive()
        except Unauthenticated as exc:
            if _IS_EVENTS not in self.head.lower():
                raise
            self._has_ended = True
            return b"data: " + orjson.dumps({"error": message_of(exc)}) + b"\n\n"

    def close(self) -> None:
        self._watch.close()
        self._stream.close()
