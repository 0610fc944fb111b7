"""Dispatch for a single Triton: there is no server to choose, but a request may have to wait, or be sent once more.

If Triton ends while it has a request that may be computed again, or before the request was sent, the request waits for the
restarted Triton, within its deadline. Requests that arrive while Triton is down are refused at once: a load balancer may have
another gateway for them. Requests for a model that is being reloaded after one of its processes died wait for the reload.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from control_plane.core.endpoints import ONLY
from control_plane.core.errors import ControlPlaneError
from control_plane.core.infer_call import InferCall
from control_plane.core.model import ModelState
from control_plane.inference.dispatch.held_stream import HeldStream
from control_plane.inference.domain.queries_of_death import StubDeaths
from control_plane.inference.retries.attempt import AnswerT_co, Attempt, RepeatableRequest, Send, is_repeatable
from control_plane.inference.retries.faults import FAULTS, Conclusion, Fault, Resend, fault_in, fault_of_error, recall_of
from control_plane.inference.retries.queries_of_death import Hashable, QueriesOfDeath, Suspect
from control_plane.inference.retries.retry_budget import CostedRequest, RetryBudget, units_of
from control_plane.protocols.http1 import HttpAnswer
from control_plane.triton.ports import HttpStream, ModelStream, Upstream
from control_plane.triton.servers import NOTICED_S, Servers
from control_plane.triton.silence_watch import SilenceWatch, TellSuspect

AnswerT = TypeVar("AnswerT")

_ENDED = frozenset((Conclusion.UNREACHABLE, Conclusion.BROKEN))
"""What a fault may say of a Triton that has ended."""


class Forsakable(Protocol):
    """The part of `admission/permit.Permit` that is needed here."""

    def forsake(self) -> None: ...


class RunningOnOne(CostedRequest, RepeatableRequest, Protocol):
    """The part of `inference/in_flight/running_request.AuthorizedRequest` that is needed here; it is charged from when it is
    sent."""

    server: str
    sent_s: float | None

    @property
    def permit(self) -> Forsakable: ...

    def note_death(self) -> None: ...


class Sendable(Hashable, Protocol[AnswerT_co]):
    """Request with a whole response."""

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[AnswerT_co]: ...


class Streamable(Hashable, Protocol):
    """Request whose response may come in pieces."""

    def stream(self, server: Upstream, *, timeout_s: float) -> Awaitable[HttpAnswer | ModelStream]: ...


@dataclass(slots=True)
class _Sent:
    """Attempt: the server that a request was sent to, and when."""

    upstream: Upstream
    copy: int
    """Equal for requests that the same copy of the model in this Triton computes."""
    at_s: float


@dataclass(slots=True)
class _StreamEnding:
    """End of a stream of an only server; implements `inference/dispatch/held_stream.StreamEnding`."""

    _dispatch: SingleServerDispatch
    _call: InferCall
    _sent: _Sent
    _is_suspect: bool
    _forget: Callable[[], None]

    async def is_death(self, fault: Fault, came: Exception | bytes) -> bool:
        error = came if isinstance(came, Exception) else None
        return await self._dispatch.is_death(fault, error, self._call, self._sent, is_suspect=self._is_suspect)

    def closed(self, fault: Fault | None) -> None:
        self._forget()
        if fault is Fault.TIMED_OUT:
            self._dispatch.gave_up(self._call, self._sent)


_Hold = Callable[[_Sent, Suspect | None, AnswerT], AnswerT]
"""Returns an answer as its caller gets it, who is to hold what is under way."""


class SingleServerDispatch:
    """Implementation of `inference/dispatch/dispatch.Dispatch` for a single server."""

    catalogue = None
    """A fleet's merged view of its servers; a single server answers such calls itself."""

    def __init__(self, servers: Servers, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the event loop's time."""
        self.retries = RetryBudget(now_s=now_s)
        self.deaths = QueriesOfDeath(now_s=now_s)
        self.silence = SilenceWatch(now_s)
        self.streams = self.silence.streams
        self.may_leave: Callable[[Any], bool] = lambda running: False
        """Whether another region could take a request that Triton was not sent, which then does not wait for the next Triton."""
        self._stub_deaths = StubDeaths()
        self._reserved_idle: set[str] = set()
        """Models that have a copy of a request under way."""
        self._servers = servers
        self._under_repair = servers.under_repair
        self._under_repair.follow(self.silence.died)
        self._now_s = now_s

    def send(
        self, request: Sendable[AnswerT], call: InferCall, *, timeout_s: float, running: RunningOnOne | None = None
    ) -> Awaitable[AnswerT]:
        """Send a unary request, once more where Triton ends meanwhile, and return the answer.

        Raises UpstreamUnavailable: Triton is down, or ended with a request that must not be repeated.
        QueryOfDeath: processes have died under the request.
        """
        # No coroutine of its own: every request would be passed through it.
        return self._sent(request.send, request, call, timeout_s, running)

    async def stream(
        self, request: Streamable, call: InferCall, *, timeout_s: float, running: RunningOnOne | None = None
    ) -> HttpAnswer | HttpStream:
        """Start a streamed response, as `send` sends until its first piece has come."""

        def begin(server: Upstream, /, *, timeout_s: float) -> Awaitable[HttpAnswer | ModelStream]:
            return self.streams.begin(ONLY, call.model_name, request.stream(server, timeout_s=timeout_s))

        return await self._sent(begin, request, call, timeout_s, running, partial(self._hold, request, call))

    def _hold(
        self, request: Hashable, call: InferCall, sent: _Sent, suspect: Suspect | None, answer: HttpAnswer | ModelStream
    ) -> HttpAnswer | ModelStream:
        """Return the stream that has begun as its caller gets it, or else the answer as it is."""
        if isinstance(answer, HttpAnswer):
            return answer
        case = self.deaths.stream_begins(request, call, ONLY, suspect)
        forget = self.streams.add(ONLY, call.model_name, answer)
        return HeldStream(answer, case, _StreamEnding(self, call, sent, suspect is not None, forget))

    async def _sent(
        self,
        send: Send[AnswerT],
        request: Hashable,
        call: InferCall,
        timeout_s: float,
        running: RunningOnOne | None,
        hold: _Hold[AnswerT] | None = None,
    ) -> AnswerT:
        now_s = self._now_s()
        deadline_s = now_s + timeout_s
        self.retries.asked(1.0 if running is None else running.expected_units, now_s)
        resent: list[Fault] = []
        if self._servers.suspect is not None:
            # A stream is ended by `open_streams`, begun or not.
            send = self._watched(send, call, self._servers.suspect, may_be_sent_again=hold is None and is_repeatable(call, running))
        while True:
            if running is not None:
                running.sent_s = None  # nobody is charged for waiting
            if self.deaths.watches(call.model_name):
                self._servers.pick()  # who comes while Triton is down is refused at once
                async with self.deaths.turn(request, call, timeout_s=deadline_s - self._now_s()) as suspect:
                    if suspect is not None and running is not None:
                        running.note_death()  # of an equal one
                    # The suspect before it may have ended Triton, or the model's stub.
                    await self._servers.comes_up(within_s=deadline_s - self._now_s())
                    if call.model_name in self._under_repair.ready_s:
                        await self._await_repair(call, deadline_s)
                    sent, attempt = self._begin(call, running), Attempt[AnswerT]()
                    await attempt.run(send, sent.upstream, timeout_s=deadline_s - sent.at_s)
                    if hold is not None and attempt.answer is not None:
                        attempt.answer = hold(sent, suspect, attempt.answer)
                    await self._judge(request, call, running, sent, attempt, suspect)
            else:
                if call.model_name in self._under_repair.ready_s:
                    await self._await_repair(call, deadline_s)
                sent = self._begin(call, running)
                # Not by `attempt.run`: every request would pass through its coroutine twice.
                try:
                    answer = await send(sent.upstream, timeout_s=deadline_s - sent.at_s)
                except Exception as exc:
                    attempt = Attempt(error=exc, fault=fault_of_error(exc))
                else:
                    fault = fault_in(answer)
                    if fault is None:
                        return answer if hold is None else hold(sent, None, answer)
                    attempt = Attempt(answer, fault=fault)
                await self._judge(request, call, running, sent, attempt, None)
            fault = attempt.fault
            if fault is None or resent.count(fault) >= FAULTS[fault].times or not self._may_resend(fault, call, running):
                return attempt.result()
            if fault is not Fault.DEAD_STUB and not await self._is_back(fault, sent, deadline_s, running):
                return attempt.result()
            resent.append(fault)

    @asynccontextmanager
    async def server_for(self, call: InferCall, *, timeout_s: float, running: RunningOnOne | None = None) -> AsyncIterator[Upstream]:
        now_s = self._now_s()
        self.retries.asked(units_of(running), now_s)
        if call.model_name in self._under_repair.ready_s:
            await self._await_repair(call, now_s + timeout_s)
        yield self._begin(call, running).upstream

    def idle_replica(self, call: InferCall) -> AbstractContextManager[Upstream] | None:
        model = call.model_name
        if model in self._reserved_idle or model in self._under_repair.ready_s or self.deaths.watches(model):
            return None
        try:
            upstream = self._servers.pick()
        except ControlPlaneError:
            return None
        self._reserved_idle.add(model)  # one at a time: how many more it could compute is not known here
        return self._idle(model, upstream)

    @contextmanager
    def _idle(self, model: str, upstream: Upstream) -> Iterator[Upstream]:
        try:
            yield upstream
        finally:
            self._reserved_idle.discard(model)

    async def reading(self, model: str, *, timeout_s: float) -> Upstream:
        if model in self._under_repair.ready_s:
            await self._under_repair.wait(model, timeout_s=timeout_s)
        return self._servers.pick()

    def awaited(self) -> Iterator[tuple[str, str, float]]:
        return self.silence.awaited()

    def ready_in_s(self, model: str) -> float:
        return 0.0

    async def ready(self) -> set[str]:
        index = await self._servers.pick().control.index()
        return {line.name for line in index if line.state is ModelState.READY}

    async def _await_repair(self, call: InferCall, deadline_s: float) -> None:
        """Wait while the model is loaded anew. Raises Overloaded: it will not be ready in time."""
        await self._under_repair.wait(call.model_name, timeout_s=deadline_s - self._now_s())

    def _begin(self, call: InferCall, running: RunningOnOne | None) -> _Sent:
        """Return where to send the request now. Raises UpstreamUnavailable: Triton is down."""
        upstream, at_s = self._servers.pick(), self._now_s()
        if running is not None:
            running.server, running.sent_s = ONLY, at_s
        return _Sent(upstream, self._under_repair.copy_of(call.model_name), at_s)

    def _watched(self, send: Send[AnswerT], call: InferCall, suspect: TellSuspect, *, may_be_sent_again: bool) -> Send[AnswerT]:
        """Return `send`, watched for a model that hangs where somebody can end it, and taken back when its process dies."""

        def watched(server: Upstream, /, *, timeout_s: float) -> Awaitable[AnswerT]:
            sent = send(server, timeout_s=timeout_s)
            return self.silence.watch(call.model_name, sent, suspect, may_be_sent_again=may_be_sent_again)

        return watched

    def _may_resend(self, fault: Fault, call: InferCall, running: RunningOnOne | None) -> bool:
        """Whether the request may be sent to the next Triton, or once its model has been loaded anew. What else this
        Triton answers, the next would answer too."""
        policy = FAULTS[fault]
        if fault is Fault.DEAD_STUB:
            return self._servers.suspect is not None and is_repeatable(call, running)  # an attached Triton's stays dead
        if policy.conclusion not in _ENDED or policy.resend is Resend.NEVER:
            return False
        return policy.resend is Resend.ALWAYS or is_repeatable(call, running)

    async def _is_back(self, fault: Fault, sent: _Sent, deadline_s: float, running: RunningOnOne | None) -> bool:
        """Wait for the next Triton until the deadline, if this one is seen to end, and the retry budget has enough left."""
        left_s = deadline_s - self._now_s()
        if not await self._servers.goes_down(sent.upstream, within_s=min(NOTICED_S, left_s)):
            return False
        if fault is Fault.NOT_SENT and self.may_leave(running):
            return False
        if FAULTS[fault].is_budgeted and not self.retries.try_resend_lost(units_of(running), server=ONLY, began_s=sent.at_s):
            return False
        if running is not None:
            running.sent_s = None  # nobody is charged for waiting
        return await self._servers.comes_up(within_s=deadline_s - self._now_s())

    async def _judge(
        self,
        request: Hashable,
        call: InferCall,
        running: RunningOnOne | None,
        sent: _Sent,
        attempt: Attempt[AnswerT],
        suspect: Suspect | None,
    ) -> None:
        """Note whether a process died under the request. Raises QueryOfDeath: it was the second."""
        fault = attempt.fault
        if fault is None:
            if suspect is not None and not suspect.is_stream:
                self.deaths.answered(suspect)
            return
        if running is not None and recall_of(attempt.error) is not None:
            running.permit.forsake()  # nobody goes on with what a dead process had
        self._tell_of_frozen(fault, attempt.error, call, sent)
        if await self.is_death(fault, attempt.error, call, sent, is_suspect=suspect is not None):
            if running is not None:
                running.note_death()
            await self.deaths.died(request, call, ONLY, suspect=suspect, is_stub=fault is Fault.DEAD_STUB)

    def _tell_of_frozen(self, fault: Fault, error: Exception | None, call: InferCall, sent: _Sent) -> None:
        """Tell of a copy whose stub Triton takes for dead and nobody has seen to die: it stands still, and stays for ever."""
        if fault is Fault.DEAD_STUB and recall_of(error) is None and sent.copy == self._under_repair.copy_of(call.model_name):
            self.met_dead_stub(ONLY, call.model_name, sent_s=sent.at_s)

    def met_dead_stub(self, server: str, model: str, *, sent_s: float) -> None:
        if self._servers.suspect is not None and model not in self._under_repair.ready_s:
            self._servers.suspect(server, model, sent_s)

    def gave_up(self, call: InferCall, sent: _Sent) -> None:
        """Note that a caller has waited in vain for the next piece of a stream."""
        if self._servers.suspect is not None:
            self.silence.gave_up(call.model_name, sent.at_s, self._servers.suspect)

    async def is_death(self, fault: Fault, error: Exception | None, call: InferCall, sent: _Sent, *, is_suspect: bool) -> bool:
        """Whether a process of Triton died while this request was in flight in it; `fleet/routing/resending` has the same for a fleet."""
        copy = (sent.upstream, sent.copy)
        if (recall := recall_of(error)) is not None:
            # One that Triton has called dead already, as it stands still, was sent nothing to die of since, and dies but once.
            return recall.is_suspect and not self._stub_deaths.was_dead(ONLY, call.model_name, copy, at_s=sent.at_s)
        if fault is Fault.DEAD_STUB:
            return self._stub_deaths.was_in_flight(ONLY, call.model_name, copy, began_s=sent.at_s, now_s=self._now_s())
        is_lost = fault is Fault.CONNECTION_LOST
        return is_lost and (not is_suspect or await self._servers.goes_down(sent.upstream, within_s=NOTICED_S))
