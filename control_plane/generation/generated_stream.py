"""One answer of a generative model as it comes, over a stream of its own at Triton (ModelStreamInfer).

Over HTTP Triton 24.10 would go on generating for a caller who has left; over gRPC the model is told at once. Triton is read
only as fast as the caller reads: what he does not take stays behind flow control.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from control_plane.core.errors import DeadlineExceeded, UpstreamFailed, UpstreamUnavailable
from control_plane.generation.domain.completion_answer import CompletionAnswer
from control_plane.generation.domain.generation_tensors import Generated, read_response
from control_plane.protocols.grpc import PREFIX_BYTES, GrpcStatus, MessageFrame, answer_of
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.protocols.openai import error_answer
from control_plane.triton.ports import GrpcStream

_FRAMING = b"Cache-Control: no-store\r\nX-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n"
_EVENTS, _JSON = b"text/event-stream; charset=utf-8", b"application/json"
_PIECE_BYTES = 64 * 1024
"""Most bytes of events that are sent in one piece, where responses have come faster than they were taken."""
_WHOLE_BYTES = 64 << 20
"""Most text of a whole answer, far more than the largest number of tokens makes: a model that never ends would fill the memory."""

_TOO_LONG = re.compile(r"maximum (?:model|context) length")
"""vLLM's words for a prompt that is longer than what the model can see."""
_STATUSES: tuple[tuple[re.Pattern[str], int], ...] = (
    (_TOO_LONG, 400),
    # Further behind they may be a caller's, whom a model quotes: its replica would be taken for gone.
    (re.compile(r"\A(?:in ensemble '[^']{1,300}', )*Request for unknown model"), 404),
    (re.compile(r"is not at ready state|Exceeds maximum queue size|Request timeout expired|Server is stopping|Server not ready"), 503),
)
"""Words of an error -> its HTTP status, as Triton would give it; the errors in a stream have none. All others are the model's."""


class GeneratedStream:
    """Answer to one call; implements `triton/ports.ModelStream`, whose pieces are events, or one whole body."""

    status = 200

    def __init__(
        self,
        stream: GrpcStream,
        answer: CompletionAnswer,
        *,
        model: str,
        is_whole: bool,
        timeout_s: float,
        count_tokens: Callable[[int, int], None],
    ) -> None:
        """`timeout_s` bounds a whole answer, and in a stream the wait for each piece. `count_tokens` is told at the end how many
        were read and generated."""
        kind = _JSON if is_whole else _EVENTS
        self.head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%btidegate-model: %b\r\n\r\n" % (kind, _FRAMING, model.encode())
        self._stream = stream
        self._answer = answer
        self._is_whole = is_whole
        self._timeout_s = timeout_s
        self._count_tokens = count_tokens
        self._loop = asyncio.get_running_loop()
        self._waits_since_s: float | None = self._loop.time()
        self._is_late = self._has_ended = False
        self._first = b""
        self._room_bytes = _WHOLE_BYTES
        self._failure: UpstreamFailed | None = None
        self._lost: UpstreamUnavailable | None = None
        self._next_check: asyncio.TimerHandle | None = self._loop.call_later(timeout_s, self._check_wait)

    @property
    def heard_s(self) -> float:
        """See `triton/ports.ModelStream`."""
        return self._stream.heard_s

    async def begin(self) -> HttpAnswer | None:
        """Await the model's first response; its error, or Triton's, is returned as an answer.

        Raises UpstreamUnavailable, UpstreamFailed, DeadlineExceeded.
        """
        generated = await self._next()
        if generated is not None and generated.error:
            return _failure(generated.error)
        if generated is None:
            self._has_ended = True
        self._first = self._answer.finish() if generated is None else self._text_of(generated)
        return None

    async def receive(self) -> bytes | None:
        """The next events, or the whole body; None at the end. Raises UpstreamFailed (the model), UpstreamUnavailable,
        DeadlineExceeded."""
        piece, self._first = self._first, b""
        while not (piece or self._has_ended):
            if self._failure is not None:
                raise self._failure
            piece = self._piece_of(await self._next())
        while piece and self._failure is None and len(piece) < _PIECE_BYTES and (frame := self._stream.take()) is not None:
            piece += self._piece_of(_read(frame))
        return piece or None

    def fail(self, error: UpstreamUnavailable) -> None:
        """See `triton/ports.ModelStream`."""
        self._lost = error
        self._stream.cancel()

    def close(self) -> None:
        if self._next_check is not None:
            self._next_check.cancel()
            self._next_check = None
            self._stream.cancel()
            if self._answer.input_tokens or self._answer.output_tokens:
                self._count_tokens(self._answer.input_tokens or 0, self._answer.output_tokens or 0)

    def _piece_of(self, generated: Generated | None) -> bytes:
        """Return what is sent of a response, or of the end (None); a model's error is kept for the next `receive`."""
        if generated is None:
            self._has_ended = True
            return self._answer.finish()
        if generated.error:
            self._failure = UpstreamFailed(generated.error)  # after what came before it
            return b""
        return self._text_of(generated)

    def _text_of(self, generated: Generated) -> bytes:
        """Add a response to the answer, and return what of that is sent now. Raises UpstreamFailed: it is too much for a whole one."""
        if self._is_whole:
            self._room_bytes -= len(generated.text)
            if self._room_bytes < 0:
                raise UpstreamFailed(f"the model answers with more than {_WHOLE_BYTES} bytes of text; ask for a stream")
        return self._answer.take(generated)

    async def _next(self) -> Generated | None:
        """The model's next response, None after the last."""
        if not self._is_whole:
            self._waits_since_s = self._loop.time()
        frame = await self._stream.receive()
        if not self._is_whole:
            self._waits_since_s = None  # a caller who does not read is not waiting for the model
        if frame is not None:
            return _read(frame)
        if self._lost is not None:
            raise self._lost
        if self._is_late:
            raise DeadlineExceeded("the model generated nothing more within the request's deadline")
        ended = answer_of(self._stream.headers, (), self._stream.trailers)
        if ended.code != 0:
            text = f"Triton ended the stream of the model: {ended.details}"
            if self._stream.is_broken_off or ended.code == GrpcStatus.UNAVAILABLE:
                raise UpstreamUnavailable(text, is_answer=not self._stream.is_broken_off)
            raise UpstreamFailed(text)
        return None

    def _check_wait(self) -> None:
        """End the wait for the model if it has lasted too long; asked once in a while, so that a response costs no timer."""
        waited_s = 0.0 if self._waits_since_s is None else self._loop.time() - self._waits_since_s
        if waited_s < self._timeout_s:
            self._next_check = self._loop.call_later(self._timeout_s - waited_s, self._check_wait)
        else:
            self._is_late = True
            self._stream.cancel()


def _read(frame: MessageFrame) -> Generated:
    return read_response(memoryview(frame)[PREFIX_BYTES:])


def _failure(text: str) -> HttpAnswer:
    """The answer to a call that the model or Triton refuses with these words."""
    status = next((status for words, status in _STATUSES if words.search(text)), 500)
    code = "model_not_found" if status == 404 else "context_length_exceeded" if status == 400 else None
    kind = "invalid_request_error" if status < 500 else "server_error"
    headers = [(b"Retry-After", b"1")] if status == 503 else []
    return make_answer(status, error_answer(text, kind=kind, code=code, field=None), headers=headers)
