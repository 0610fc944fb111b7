"""Watches, in each process that sends requests to an only Triton, whether a model of it hangs. A fleet's
`fleet/routing/model_router` does the same for each replica.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from math import inf
from typing import TypeVar

from control_plane.core.endpoints import ONLY
from control_plane.core.errors import DeadlineExceeded
from control_plane.core.infer_call import SendFailure
from control_plane.protocols.grpc import GrpcAnswer
from control_plane.triton.copy_silence import CopySilence
from control_plane.triton.open_streams import OpenStreams

AnswerT = TypeVar("AnswerT")

TellSuspect = Callable[[str, str, float], None]
"""Called with a server, a model that seems to hang there, and since when it has been silent."""

_MAX_MODELS = 1000
LONG_S = 1.0
"""Requests that have waited for so long are told to the process that may end a model that seems to hang."""


class SilenceWatch:
    """Silence detector of the models of an only server."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the event loop's time."""
        self._now_s = now_s
        self.streams = OpenStreams(now_s)
        self._models: dict[str, tuple[CopySilence, dict[object, float]]] = {}
        """Model -> its silence, and the requests under way, each with when it was sent, in that order."""

    async def watch(self, model: str, sent: Awaitable[AnswerT], suspect: TellSuspect) -> AnswerT:
        """Await an answer; call `suspect` if its model hangs. Raises what `sent` raises."""
        silence, waiting = self._of(model)
        waiting[key := object()] = sent_s = self._now_s()
        is_overdue = True
        try:
            answer = await sent
            loss = answer.loss if isinstance(answer, GrpcAnswer) else None
            is_overdue = loss is SendFailure.TIMED_OUT
            if loss is None:
                silence.answered(sent_s, self._now_s())
            return answer
        except (DeadlineExceeded, asyncio.CancelledError):
            raise
        except Exception:
            is_overdue = False  # a connection that broke says nothing of the model
            raise
        finally:
            del waiting[key]
            if is_overdue:
                self.gave_up(model, sent_s, suspect)

    def awaited(self) -> Iterator[tuple[str, str, float]]:
        """Yield the server, the model and the time it was sent of each model's oldest request, if that has
        waited for long."""
        long_ago_s = self._now_s() - LONG_S
        for model, (_, waiting) in self._models.items():
            if (oldest_s := next(iter(waiting.values()), inf)) <= long_ago_s:
                yield ONLY, model, oldest_s

    def gave_up(self, model: str, sent_s: float, suspect: TellSuspect) -> None:
        """Note that an answer to what was sent then, or its next piece, was waited for in vain; call `suspect` if the model hangs."""
        silence, waiting = self._of(model)
        if self.streams.go_on(ONLY, model):
            silence.goes_on(self._now_s())
        since_s = silence.gave_up(sent_s, self._now_s(), oldest_s=next(iter(waiting.values()), inf))
        if since_s is not None:
            suspect(ONLY, model, since_s)

    def _of(self, model: str) -> tuple[CopySilence, dict[object, float]]:
        known = self._models.get(model)
        if known is None:
            if len(self._models) >= _MAX_MODELS:
                self._models.clear()  # bounded: callers may name any model
            known = self._models[model] = (CopySilence(), {})
        return known
