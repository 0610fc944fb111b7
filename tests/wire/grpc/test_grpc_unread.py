"""gRPC calls that wait unread behind others of their connection, while the whole process is busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import chain, repeat

import pytest

from control_plane.core.infer_call import Outcome
from control_plane.frontends.grpc.call import Call
from control_plane.frontends.grpc.connection import GrpcConnection
from control_plane.protocols.grpc import GrpcAnswer, frame_message, message_answer
from control_plane.protocols.http2.stream import Stream
from control_plane.telemetry.shed_reason import ShedReason
from control_plane.triton.ports import GrpcCall
from tests.fakes import FakeGrpc
from tests.h2_peer import H2Peer
from tests.wire.grpc_frontend import frontend, infer_message, message_of, until
from tests.wire.h2_calls import HEAD, ask, ended

CALLS = range(3, 403, 2)
"""Stream ids, whose calls are sent together."""


def busy(first_s: float, then_s: float = 0.0) -> Callable[[GrpcCall], GrpcAnswer]:
    """Triton's answers, the first of which and the others keep the whole process busy for so long."""
    waits = chain([first_s], repeat(then_s))

    def answer(call: GrpcCall) -> GrpcAnswer:
        time.sleep(next(waits))
        return message_answer(message_of(call))

    return answer


async def send(peer: H2Peer, calls: Sequence[int], *, timeout: str, heads_first: bool = False) -> None:
    """Send these calls at once, each with this `grpc-timeout`, or after the first the heads of all before their messages, as some
    clients do."""
    for together in [calls[:1], calls[1:]] if heads_first else [[stream_id] for stream_id in calls]:
        for stream_id in together:
            peer.state.send_headers(stream_id, [*HEAD, ("grpc-timeout", timeout)])
        for stream_id in together:
            peer.state.send_data(stream_id, frame_message(infer_message()), end_stream=True)
    await peer.flush()


async def statuses_of(peer: H2Peer, *, timeout: str, heads_first: bool = False) -> list[str]:
    """Send all calls at once, each with this `grpc-timeout`; return their statuses."""
    await send(peer, CALLS, timeout=timeout, heads_first=heads_first)
    return [await ended(peer, stream_id) for stream_id in CALLS]


@pytest.mark.parametrize("heads_first", [False, True])
async def test_those_behind_one_that_is_late_are_refused_unparsed(monkeypatch: pytest.MonkeyPatch, heads_first: bool) -> None:
    parsed = 0
    accept = GrpcConnection._accept

    def counted(self: GrpcConnection, stream: Stream) -> Call:
        nonlocal parsed
        parsed += 1
        return accept(self, stream)

    monkeypatch.setattr(GrpcConnection, "_accept", counted)
    async with frontend(FakeGrpc()) as it:
        peer = await it.peer()
        await ask(peer)
        parsed, it.upstream.grpc.answer = 0, busy(1.2)
        statuses = await statuses_of(peer, timeout="2S", heads_first=heads_first)
        assert statuses.count("14") > 100
        # One of each time that the connection was read; of heads alone also those of the turn in which Triton began.
        assert parsed - statuses.count("0") <= (50 if heads_first else 3)
        # Most are counted when the backlog has been read: of heads alone the messages are left of it.
        await until(lambda: it.governed.admission.counts["", ShedReason.UNREAD] >= statuses.count("14"))
        assert it.governed.admission.counts["", ShedReason.UNREAD] == statuses.count("14")


async def test_those_that_are_late_by_then_cost_no_work() -> None:
    async with frontend(FakeGrpc(answer=busy(0.02, 0.02))) as it:
        peer = await it.peer()
        statuses = await statuses_of(peer, timeout="100m")
        assert statuses[0] == "0"
        assert statuses[-1] == "4"
        assert statuses.count("0") == len(it.upstream.grpc.requests)
        assert statuses.count("4") == it.recorder.outcomes.count(Outcome.DEADLINE_EXCEEDED) > 20
        assert statuses.count("14") == it.recorder.outcomes.count(Outcome.REFUSED)
        assert await ask(peer, CALLS[-1] + 2) == infer_message()


async def test_one_that_has_waited_for_most_of_its_time_is_refused_while_it_can_still_be_asked_elsewhere() -> None:
    async with frontend(FakeGrpc(answer=busy(1.2))) as it:
        peer = await it.peer()
        statuses = await statuses_of(peer, timeout="2S")
        assert set(statuses) == {"0", "14"}
        assert statuses[-1] == "14"
        assert statuses.count("0") == len(it.upstream.grpc.requests) < 100
        refused = next(each for each in peer.events if dict(getattr(each, "headers", ())).get("grpc-status") == "14")
        assert "too busy to read" in dict(refused.headers)["grpc-message"]


async def test_what_one_waited_is_taken_off_its_timeout() -> None:
    async with frontend(FakeGrpc(answer=busy(0.2))) as it:
        assert set(await statuses_of(await it.peer(), timeout="5S")) == {"0"}
        timeouts_s = it.upstream.grpc.calls.timeouts_s
        assert timeouts_s[0] > 4.8
        assert max(timeouts_s[-100:]) <= 4.8


async def test_so_is_what_one_waited_in_its_socket_behind_others() -> None:
    first, second = CALLS[:100], CALLS[100:]
    async with frontend(FakeGrpc(answer=busy(0.01, 0.01))) as it:
        peer = await it.peer()
        await send(peer, first, timeout="5S")
        while not it.upstream.grpc.calls.timeouts_s:
            await asyncio.sleep(0)
        await send(peer, second, timeout="5S")
        for stream_id in CALLS:
            await ended(peer, stream_id)
        timeouts_s = it.upstream.grpc.calls.timeouts_s
        assert timeouts_s[0] > 4.5
        assert timeouts_s[len(first)] <= 4.5
        later = CALLS[-1] + 2
        await send(peer, [later], timeout="5S")
        await ended(peer, later)
        assert timeouts_s[-1] > 4.5
