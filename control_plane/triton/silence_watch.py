"""Watches, in each process that sends requests to an only Triton, whether a model of it hangs, and takes requests back from
one whose process has died. A fleet's `fleet/routing/model_router` and `fleet/view/health/recalls` do the same for each replica.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from control_plane.concurrency.abort_scope import AbortScope
from control_plane.core.endpoints import ONLY
from control_plane.core.errors import DeadlineExceeded
from control_plane.core.infer_call import SendFailure
from control_plane.protocols.grpc import GrpcAnswer
from control_plane.triton.copy_silence import CopySilence
from control_plane.triton.open_streams import MOST_SUSPECTS, OpenStreams, lost_with

AnswerT = TypeVar("AnswerT")

TellSuspect = Callable[[str, str, float], None]
"""Called with a server, a model that seems to hang there, and since when it has been silent."""

_MAX_MODELS = 1000
LONG_S = 1.0
"""Requests that have waited for so long are told to the process that may end a model that seems to hang."""


@dataclass(slots=True, eq=False)
class _Awaited:
    """A request that Triton has not answered yet."""

    sent_s: float
    scope: AbortScope | None
    """Where it may be sent again: by this it is taken back."""


class SilenceWatch:
    """Silence detector of the models of an only server."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the event loop's time."""
        self._now_s = now_s
        self.streams = OpenStreams(now_s)
        self._models: dict[str, tuple[CopySilence, dict[_Awaited, None]]] = {}
        """Model -> its silence, and the requests under way, in the order in which they were sent."""

    async def watch(self, model: str, sent: Awaitable[AnswerT], suspect: TellSuspect, *, may_be_sent_again: bool = False) -> AnswerT:
        """Await an answer; call `suspect` if its model hangs.

        Raises UpstreamUnavailable: the model's process has died, and the request `may_be_sent_again`; and what `sent` raises.
        """
        silence, waiting = self._of(model)
        request = _Awaited(sent_s := self._now_s(), AbortScope() if may_be_sent_again else None)
        waiting[request] = None
        is_overdue = True
        try:
            if request.scope is None:
                answer = await sent
            else:
                async with request.scope:
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
            waiting.pop(request, None)
            if is_overdue:
                self.gave_up(model, sent_s, suspect)

    def died(self, models: Iterable[str]) -> None:
        """Take back what was under way at models whose processes have died, or were ended. Triton itself (24.10) answers for a
        dead process one request a second; this may be told time and again while a model is loaded anew."""
        for model in models:
            self.streams.died(ONLY, model)
            _, waiting = self._models.get(model, (None, {}))
            for number, request in enumerate(list(waiting)):
                if request.scope is not None:
                    request.scope.abort(lost_with(model, ONLY, is_suspect=number < MOST_SUSPECTS))
                    del waiting[request]

    def awaited(self) -> Iterator[tuple[str, str, float]]:
        """Yield the server, the model and the time it was sent of each model's oldest request, if that has
        waited for long."""
        long_ago_s = self._now_s() - LONG_S
        for model, (_, waiting) in self._models.items():
            if (oldest_s := _oldest_s(waiting)) <= long_ago_s:
                yield ONLY, model, oldest_s

    def gave_up(self, model: str, sent_s: float, suspect: TellSuspect) -> None:
        """Note that an answer to what was sent then, or its next piece, was waited for in vain; call `suspect` if the model hangs."""
        silence, waiting = self._of(model)
        if self.streams.go_on(ONLY, model):
            silence.goes_on(self._now_s())
        since_s = silence.gave_up(sent_s, self._now_s(), oldest_s=_oldest_s(waiting))
        if since_s is not None:
            suspect(ONLY, model, since_s)

    def _of(self, model: str) -> tuple[CopySilence, dict[_Awaited, None]]:
        known = self._models.get(model)
        if known is None:
            if len(self._models) >= _MAX_MODELS:
                # Bounded: callers may name any model. What is under way is bounded as well, and must be found when its process dies.
                self._models = {name: each for name, each in self._models.items() if each[1]}
            known = self._models[model] = (CopySilence(), {})
        return known


def _oldest_s(waiting: Iterable[_Awaited]) -> float:
    return next((request.sent_s for request in waiting), inf)
