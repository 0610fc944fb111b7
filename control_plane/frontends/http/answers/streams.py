"""Forwards streamed answers over HTTP, and ends them early with an error message: when the caller loses its rights
(`frontends/kserve/http`), or the gateway stops (`frontends/http/answers/loop`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import orjson

from control_plane.auth.stream_rights import RightsWatch
from control_plane.core.errors import ControlPlaneError, Unauthenticated, UpstreamFailed
from control_plane.frontends.common.caller import with_timeout
from control_plane.frontends.common.http_errors import openai_error
from control_plane.frontends.common.status import message_of
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, is_chunked, without_chunks
from control_plane.protocols.kserve.routes import is_openai
from control_plane.triton.ports import HttpStream, ModelStream, RegionUpstream

_IS_EVENTS = b"text/event-stream"
_WHOLE_BYTES = 1 << 20


def error_event(head: bytes, error: ControlPlaneError, target: bytes = b"") -> bytes | None:
    """The event that ends a stream with an error, as Triton or OpenAI reports errors within one, by the call's `target`; None:
    the answer of this `head` is no stream of events."""
    if _IS_EVENTS not in head.lower():
        return None
    if is_openai(target):
        return b"data: " + openai_error(error) + b"\n\n"
    return b"data: " + orjson.dumps({"error": message_of(error)}) + b"\n\n"


async def forward(
    stream: HttpStream,
    write: Callable[[bytes], None],
    writable: asyncio.Event,
    *,
    keep_alive: bool,
    takes_chunks: bool,
    is_head: bool = False,
) -> None:
    """Write a streamed answer piece by piece, receiving from Triton only as fast as the client reads; to a HEAD request
    its head alone.

    Raises what the stream's `receive` raises.
    """
    head, in_chunks = stream.head, takes_chunks and is_chunked(stream.head)
    if not takes_chunks:
        head = without_chunks(head)
    # Triton's head ends with the empty line, before which the field belongs.
    write(head if keep_alive else head[:-2] + b"Connection: close\r\n\r\n")
    if is_head:
        return
    while (piece := await stream.receive()) is not None:
        write(b"%x\r\n%b\r\n" % (len(piece), piece) if in_chunks else piece)
        await writable.wait()
    if in_chunks:
        write(b"0\r\n\r\n")


async def whole(stream: HttpStream, *, takes_chunks: bool) -> HttpAnswer:
    """Receive all of a streamed answer, and close it. Raises what its `receive` raises, and UpstreamFailed: it is too long."""
    pieces, room_bytes = list[bytes](), _WHOLE_BYTES
    try:
        while (piece := await stream.receive()) is not None:
            room_bytes -= len(piece)
            if room_bytes < 0:
                raise UpstreamFailed(f"Triton's error has more than {_WHOLE_BYTES} bytes")
            pieces.append(piece)
    finally:
        stream.close()
    body = b"".join(pieces)
    if takes_chunks and is_chunked(stream.head):
        return HttpAnswer(stream.status, stream.head, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n")
    return HttpAnswer(stream.status, without_chunks(stream.head)[:-2] + b"Content-Length: %d\r\n\r\n" % len(body), body)


async def begun_on(gateway: RegionUpstream, http: HttpRequest, timeout_s: float) -> HttpAnswer | ModelStream:
    """Send a request to another region's gateway, as it came, and return what it begins to answer. Raises as `HttpUpstream.stream`."""
    answer = await gateway.http.stream(with_timeout(http, timeout_s), timeout_s=timeout_s)
    if isinstance(answer, HttpAnswer) or answer.status == 200:
        return answer
    return await whole(answer, takes_chunks=http.takes_chunks)


async def watched(asking: Awaitable[HttpAnswer | HttpStream], watch: RightsWatch, *, target: bytes = b"") -> HttpAnswer | HttpStream:
    """Await the answer to a call of this `target` while watching the caller's rights; a streamed one is watched to its end.

    Raises Unauthenticated: the rights ended before the answer began.
    """
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
    return _WatchedStream(answer, watch, target)


class _WatchedStream:
    """Wrapper of `triton/ports.HttpStream` that ends the stream, with an error event, when its caller's rights
    end."""

    def __init__(self, stream: HttpStream, watch: RightsWatch, target: bytes) -> None:
        self.status = stream.status
        self.head = stream.head
        self._stream = stream
        self._watch = watch
        self._target = target
        # Closed by the watch itself: a client that does not read would keep `receive` from being called.
        watch.on_end = stream.close
        self._has_ended = False

    async def receive(self) -> bytes | None:
        """The next piece; raises Unauthenticated if the answer is no event stream, which could tell the
        error."""
        if self._has_ended:
            return None
        try:
            async with self._watch:
                return await self._stream.receive()
        except Unauthenticated as exc:
            event = error_event(self.head, exc, self._target)
            if event is None:
                raise
            self._has_ended = True
            return event

    def close(self) -> None:
        self._watch.close()
        self._stream.close()
