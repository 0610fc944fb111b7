"""ModelStreamInfer: relays one client's stream of requests and answers.

Triton 24.10 crashes when requests to decoupled and to ordinary models are streamed at the same time, on one
stream or on those of two clients. So only requests to decoupled models are sent on as a stream, one for each
client stream and server. An ordinary request is sent as a ModelInfer call, and its answer is returned in a
stream's envelope, in the order of the requests. `triton_grpc_error`, which crashes Triton too, is not
forwarded but implemented here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeAlias

from control_plane.auth.stream_rights import StreamRights
from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.errors import ControlPlaneError, DeadlineExceeded
from control_plane.core.infer_call import InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.frontends.common.inflating import inflated
from control_plane.frontends.common.status import message_of
from control_plane.frontends.grpc.handler import failure
from control_plane.frontends.grpc.message_stream import MessageStream
from control_plane.frontends.kserve.grpc_decoupled import DecoupledStreams
from control_plane.frontends.kserve.grpc_infer import InferMessage, outcome_of_code
from control_plane.frontends.kserve.grpc_stream_messages import (
    ERRORS_END_STREAM,
    StreamEnded,
    error_message,
    inflated_answer,
    says_decoupled,
)
from control_plane.frontends.kserve.grpc_stream_request import StreamRequest
from control_plane.frontends.kserve.grpc_streamed_infer import StreamedInfer
from control_plane.frontends.kserve.services import KServeServices
from control_plane.inference.in_flight.running_request import AuthorizedRequest, RunningRequest
from control_plane.inference.model_configuration.transaction_policies import TransactionPolicies
from control_plane.inference.routes.targets import Arm
from control_plane.protocols.grpc import (
    HEAD,
    GrpcAnswer,
    GrpcHead,
    MessageFrame,
    frame_message,
    status_fields,
)
from control_plane.protocols.kserve.stream_answer import stream_answer
from control_plane.telemetry.tracing import TRACEPARENT
from control_plane.triton.ports import GrpcCall

_MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"

_MAX_UNANSWERED = 64
"""Ordinary requests of one stream that may be in flight; then no more of its messages are received."""

_RETRY_AFTER_S = 1.0
"""When a client may try again whose requests of sequences fill the waiting room."""

_ENDED_WELL = GrpcAnswer(0, HEAD, (), status_fields(0, ""))


class StreamRelay:
    """Handler of ModelStreamInfer calls."""

    def __init__(self, services: KServeServices) -> None:
        self.inference, self.access, self.servers = services.inference, services.access, services.servers
        self.limits, self.budget, self.request_timeout_s = services.limits, services.budget, services.read_timeout_s
        self.rights = StreamRights(self.access)
        self.transaction_policies = TransactionPolicies(self.inference.dispatch)

    async def run(self, head: GrpcHead, messages: MessageStream, principal: Principal, *, identify: Callable[[], Principal]) -> GrpcAnswer:
        """Relay until both sides have finished; cancelling it cancels the streams to Triton.

        Raises:
            DeadlineExceeded, UpstreamUnavailable.
            Unauthenticated: the caller's key or token is no longer valid, which `identify` is asked for each
                request and
                every few moments.
        """
        watch = self.rights.watch(principal, identify)
        try:
            async with watch:
                return await self._run(head, messages, principal, identify)
        finally:
            watch.close()

    async def _run(self, head: GrpcHead, messages: MessageStream, principal: Principal, identify: Callable[[], Principal]) -> GrpcAnswer:
        with self.inference.running.begin_stream(principal) as running:
            self.servers.pick()  # raises if no server is up, so that the client need not send a request to find out
            try:
                async with asyncio.timeout(head.timeout_s):
                    answer = await _StreamCall(self, head, messages, running, identify).run()
            except TimeoutError as exc:
                raise DeadlineExceeded("Deadline Exceeded") from exc
            running.outcome = Outcome.ANSWERED if answer.code == 0 else Outcome.UPSTREAM_ERROR
            return answer


_PendingAnswer: TypeAlias = asyncio.Task[tuple[str, GrpcAnswer | None]]


class _StreamCall:
    """State of one ModelStreamInfer call: its streams to Triton, and its unanswered requests in order."""

    def __init__(
        self, relay: StreamRelay, head: GrpcHead, messages: MessageStream, running: RunningRequest, identify: Callable[[], Principal]
    ) -> None:
        self._relay = relay
        self._messages = messages
        messages.is_idle = self._is_idle
        self._running = running
        self._identify = identify
        self._errors_end_stream = ERRORS_END_STREAM in head.metadata
        # Without the client's timeout: it bounds the whole call here, and each request has a deadline of its
        # own.
        self._stream_head = GrpcHead(head.method, head.metadata, None, head.encoding, request_id=head.request_id)
        self._infer_head = GrpcHead(_MODEL_INFER, head.metadata, None, head.encoding)
        self._held = AsyncExitStack()
        self._decoupled = DecoupledStreams(
            relay.inference,
            relay.servers,
            self._stream_head,
            messages,
            self._held,
            request_timeout_s=relay.request_timeout_s,
            errors_end_stream=self._errors_end_stream,
        )
        self._arms: dict[str, Arm] = {}
        """The first choice among each route's targets."""
        self._unanswered: asyncio.Queue[_PendingAnswer | None] = asyncio.Queue(_MAX_UNANSWERED)
        self._under_way: set[StreamRequest] = set()
        self._sequences: dict[tuple[str, str], _PendingAnswer] = {}
        """The last unanswered request of each sequence (model, sequence id), which the next one waits for."""

    async def run(self) -> GrpcAnswer:
        try:
            async with self._held, asyncio.TaskGroup() as tasks:
                answers = tasks.create_task(self._answer_in_order(), name="grpc-stream-answers")
                while (frame := await self._messages.receive()) is not None:
                    await self._take(frame, tasks)
                await self._unanswered.put(None)
                # Before half-closing: requests that wait for their models to load may yet prove to be for
                # decoupled ones.
                await answers
                self._decoupled.half_close()
        except BaseExceptionGroup as group:
            # What else was raised is the consequence: the first to fail had all others cancelled.
            first = group.exceptions[0]
            if isinstance(first, StreamEnded):
                return first.answer
            raise first from None
        finally:
            self._decoupled.cancel()
            for asked in tuple(self._under_way):  # a task that is cancelled before it first runs never reaches its `finally`
                self._end(asked, Outcome.ABANDONED)
        return _ENDED_WELL

    async def _take(self, frame: MessageFrame, tasks: asyncio.TaskGroup) -> None:
        """Relay one request; a refused one is answered on the stream, which continues.

        Raises Unauthenticated: the caller's key has been revoked meanwhile, which ends the stream.
        """
        message = InferMessage(frame, self._stream_head, self._relay.limits, self._identify(), self._relay.access)
        if message.is_compressed:
            async with inflated(message, self._relay.budget):
                asked = await self._admit(message)
        else:
            asked = await self._admit(message)
        if asked is None:
            return
        # A stream is recorded under the model of its first request.
        if not self._running.named_model:
            self._running.set_requested(asked.call, named=asked.running.named_model)
        is_decoupled = await self._relay.transaction_policies.is_decoupled(asked.call.model_name)
        if is_decoupled and (asked.call.model_name, asked.call.sequence_id) not in self._sequences:
            await self._pass_on(asked, tasks)
        else:  # an ordinary model, or one that no server has loaded: later messages must not wait for its load
            await self._unanswered.put(self._start(asked, tasks))

    async def _admit(self, message: InferMessage) -> StreamRequest | None:
        """Admit a request; None: it was refused, and the refusal has been sent."""
        size_bytes = message.body_bytes()
        try:
            return await self._read(message)
        except ControlPlaneError as exc:
            await self._messages.send(error_message(message.id(), message_of(exc)))
            self._messages.forget(size_bytes)
            return None

    async def _read(self, message: InferMessage) -> StreamRequest:
        """Admit, parse and authorise a request.

        Raises ControlPlaneError, after metering the refused request.
        """
        inference, size_bytes = self._relay.inference, message.body_bytes()
        with inference.running.begin_within_stream(message.principal, message) as begun:
            if inference.tracer is not None:
                begun.trace = inference.tracer.begin(message.field(TRACEPARENT))
            admitted = begun.admit() or await begun.admit_when_synced()
            named = message.read_at_once()
            if named is None:
                named = await run_in_steps(message.read())
            call, route, arm = inference.resolve(named, message.principal, message)
            if arm is not None and not call.sequence_id:  # all else of one stream goes to one model of a route
                arm = arm.beside(self._arms.setdefault(arm.route.name, arm))
                call = arm.call
            if route is not None:
                message.readdress(call.model_name, call.model_version)
            running = admitted.authorize(call, named=named.model_name)
            running.is_repeatable = inference.is_repeatable(call.model_name, route)
            # Refused here, or what comes after it in its sequence would no longer wait for what came before.
            place = running.permit.enter_room(_RETRY_AFTER_S) if (call.model_name, call.sequence_id) in self._sequences else None
            # It goes on until its answer has been sent (`_end`), which other requests of the stream do not wait for.
            running.detach()
        asked = StreamRequest(message, call, route.deadline_s if route is not None else None, running, size_bytes, arm, place)
        self._under_way.add(asked)
        return asked

    def _end(self, asked: StreamRequest, outcome: Outcome | None = None) -> None:
        self._under_way.discard(asked)
        asked.leave_room()
        self._messages.forget(asked.size_bytes)
        asked.running.end(outcome)

    def _is_idle(self) -> bool:
        """Whether each request has been answered."""
        return not self._under_way and not self._unanswered.qsize() and self._decoupled.are_idle()

    # Ordinary models, and those that may be

    def _start(self, asked: StreamRequest, tasks: asyncio.TaskGroup) -> _PendingAnswer:
        sequence = (asked.call.model_name, asked.call.sequence_id)
        asking = tasks.create_task(self._ask(asked, self._sequences.get(sequence), tasks), name="grpc-stream-request")
        if asked.call.sequence_id:
            self._sequences[sequence] = asking
            # Only where no later request of the sequence has taken its place.
            asking.add_done_callback(lambda done: self._sequences.pop(sequence, None) if self._sequences.get(sequence) is done else None)
        return asking

    async def _ask(self, asked: StreamRequest, before: _PendingAnswer | None, tasks: asyncio.TaskGroup) -> tuple[str, GrpcAnswer | None]:
        """Send a request and return its id and answer; None: its model proved decoupled, and answers on its
        own stream."""
        now_s, running = asyncio.get_running_loop().time, asked.running
        answer: GrpcAnswer | None = None
        running.outcome = Outcome.ABANDONED
        try:
            if before is not None:  # requests of a sequence must reach Triton in order
                await asyncio.wait((before,))
            timeout_s = await asked.acquire_slot(self._relay.inference, timeout_s=self._relay.request_timeout_s)
            deadline_s = now_s() + timeout_s
            if not await self._is_decoupled_once_loaded(asked.call.model_name, timeout_s):
                answer = await self._infer(asked, deadline_s)
            if answer is not None and not says_decoupled(answer):
                running.answered(outcome_of_code(answer.code), answer)
            else:
                answer = None
                await self._decoupled.send(asked, await self._decoupled.reserve(asked, deadline_s - now_s()), tasks)
                running.outcome = Outcome.ANSWERED
        except ControlPlaneError as exc:
            answer = failure(exc)
            running.fail(exc)
        finally:
            self._end(asked)
        return asked.call.request_id, answer

    async def _infer(self, asked: StreamRequest, deadline_s: float) -> GrpcAnswer:
        """Send a request to an ordinary model; a route's own model stands in for another that fails."""
        inference, running, arm = self._relay.inference, asked.running, asked.arm
        if arm is None:
            return await self._send(asked.message, asked.call, running, deadline_s - asyncio.get_running_loop().time())

        def ask(left_s: float) -> Awaitable[GrpcAnswer]:
            return self._send(asked.message, running.call, running, left_s)

        async def divert(left_s: float) -> float:
            asked.message.readdress(arm.stable.model_name, arm.stable.model_version)
            running.divert(arm.stable)
            return await inference.acquire_slot(running, timeout_s=left_s)

        return await inference.fallback.answer(arm, running, deadline_s, ask=ask, divert=divert)

    async def _send(self, message: InferMessage, call: InferCall, running: AuthorizedRequest, timeout_s: float) -> GrpcAnswer:
        if call.classified or call.sequence_id:
            timeout_s = await self._relay.inference.require_harmless(call, timeout_s)
        infer = StreamedInfer(GrpcCall(self._infer_head, message.frame), running.permit)
        return await self._relay.inference.dispatch.send(infer, call, timeout_s=timeout_s, running=running)

    async def _is_decoupled_once_loaded(self, model: str, timeout_s: float) -> bool:
        """Whether the model is decoupled; if no server has it, it is loaded first to find out.

        False also if Triton cannot say: then Triton's own answer to the request tells the caller why.
        """
        found = await self._relay.transaction_policies.is_decoupled(model)
        if found is None:
            await self._relay.inference.dispatch.reading(model, timeout_s=timeout_s)
            found = await self._relay.transaction_policies.is_decoupled(model)
        return bool(found)

    async def _answer_in_order(self) -> None:
        """Send the answers of ordinary requests in the order of the requests; None in the queue ends it."""
        while (asking := await self._unanswered.get()) is not None:
            request_id, answer = await asking
            if answer is None:
                continue
            if answer.code == 0:
                message = await inflated_answer(answer)
                await self._messages.send(frame_message(stream_answer(message)), answer.headers)
            elif self._errors_end_stream:
                raise StreamEnded(answer)
            else:
                await self._messages.send(error_message(request_id, answer.details))

    # Decoupled models

    async def _pass_on(self, asked: StreamRequest, tasks: asyncio.TaskGroup) -> None:
        """Send a request to a decoupled model, and record it as answered at that moment.

        Its end cannot be observed: a decoupled model sends any number of responses and need not mark the last
        one.
        """
        try:
            timeout_s = await asked.acquire_slot(self._relay.inference, timeout_s=self._relay.request_timeout_s)
            server = await self._decoupled.reserve(asked, timeout_s)
        except ControlPlaneError as exc:
            asked.running.fail(exc)
            self._end(asked)
            await self._messages.send(error_message(asked.call.request_id, message_of(exc)))
            return
        await self._decoupled.send(asked, server, tasks)
        self._end(asked, Outcome.ANSWERED)
