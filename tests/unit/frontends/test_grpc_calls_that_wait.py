"""A gRPC call whose message is whole, and which waits for its turn to begin."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from control_plane.core.errors import Overloaded
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.read_scheduler import WaitingRequest
from control_plane.frontends.grpc.arrivals import Arrivals
from control_plane.frontends.grpc.call import Call
from control_plane.frontends.grpc.handler import GrpcHandler
from control_plane.frontends.grpc.unparsed_answers import UnparsedAnswers
from control_plane.protocols.grpc import GrpcAnswer, GrpcHead, MessageFrame, frame_message, message_answer
from control_plane.protocols.http2.headers import Fields
from control_plane.protocols.http2.stream import Stream
from control_plane.triton.ports import GrpcCall
from tests.aio import settle

pytestmark = pytest.mark.virtual_time

HEAD = ((b":method", b"POST"), (b":path", b"/s/m"), (b"content-type", b"application/grpc"))
MESSAGE = frame_message(b"x" * 1000)


@dataclass
class Connection:
    """Fake `CallConnection`, where calls begin when a test says so."""

    tasks: asyncio.TaskGroup
    budget: BodyBudget = field(default_factory=lambda: BodyBudget(1 << 20))
    max_message_bytes: int = 1 << 20
    body_timeout_s: float = 10.0
    arrivals: Arrivals = field(default_factory=lambda: Arrivals(lambda: 0))
    uncounted_bytes: int = 0
    is_leaving: bool = False
    begun: int = 0
    asked_to_begin: int = 0
    worked_on: list[GrpcCall] = field(default_factory=list)
    answers: list[GrpcAnswer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.unparsed = UnparsedAnswers(lambda call, waited_s: None, self.arrivals)

    def handler_for(self, head: GrpcHead) -> tuple[GrpcHandler, Principal]:
        return GrpcHandler(unary=self.work, late=lambda principal, left_s, count: Overloaded("busy")), ANONYMOUS

    async def work(self, call: GrpcCall) -> GrpcAnswer:
        self.worked_on.append(call)
        return message_answer(b"")

    def begin(self, call: WaitingRequest) -> bool:
        self.asked_to_begin += 1
        return False

    def has_begun(self) -> None:
        self.begun += 1

    def answer(self, stream: Stream, answer: GrpcAnswer) -> None:
        self.answers.append(answer)

    def consumed(self, stream: Stream, count: int) -> None: ...

    def reset(self, stream: Stream) -> None:
        raise AssertionError("its answer was not waited for")

    def send(self, stream: Stream, frame: MessageFrame, headers: Fields | None) -> None: ...

    async def writable(self) -> None: ...


def arrived(connection: Connection) -> Call:
    """A call whose message has come in two pieces."""
    call = Call(connection, Stream(1, send_window=1 << 16, receive_window=1 << 16))
    call.on_headers(HEAD, ends=False)
    call.on_data(MESSAGE[:10], ends=False)
    call.on_data(MESSAGE[10:], ends=True)
    return call


async def test_it_is_not_taken_for_one_whose_message_does_not_come() -> None:
    async with asyncio.TaskGroup() as tasks:
        connection = Connection(tasks)
        call, now_s = arrived(connection), asyncio.get_running_loop().time()
        for seconds in (0.0, 100.0, 200.0):
            call.check(now_s + seconds)
        assert connection.answers == []
        call.begin()
    assert [each.code for each in connection.answers] == [0]


async def test_its_wait_is_told_to_whoever_works_on_it() -> None:
    async with asyncio.TaskGroup() as tasks:
        connection = Connection(tasks)
        call = arrived(connection)
        await asyncio.sleep(3.0)
        call.begin()
        await settle()
    assert [each.waited_s for each in connection.worked_on] == [3.0]
    assert connection.begun == 1


async def test_its_message_counts_for_its_connection_until_it_begins() -> None:
    async with asyncio.TaskGroup() as tasks:
        connection = Connection(tasks)
        call = arrived(connection)
        assert connection.uncounted_bytes == len(MESSAGE)
        call.begin()
        assert connection.uncounted_bytes == 0


async def test_one_that_was_cancelled_costs_no_work() -> None:
    async with asyncio.TaskGroup() as tasks:
        connection = Connection(tasks)
        call = arrived(connection)
        call.on_reset()
        assert connection.uncounted_bytes == 0
        call.begin()
        await settle()
    assert connection.worked_on == []
    assert connection.begun == 1


@pytest.mark.parametrize(("message_after_s", "codes", "asked_to_begin"), [(0.1, [], 1), (1.5, [14], 0)])
async def test_one_that_is_late_when_its_message_comes_waits_for_no_turn(
    message_after_s: float, codes: list[int], asked_to_begin: int
) -> None:
    async with asyncio.TaskGroup() as tasks:
        connection = Connection(tasks)
        connection.arrivals.began_backlog(asyncio.get_running_loop().time())
        call = Call(connection, Stream(1, send_window=1 << 16, receive_window=1 << 16))
        call.on_headers((*HEAD, (b"grpc-timeout", b"2S")), ends=False)
        await asyncio.sleep(message_after_s)
        call.on_data(MESSAGE, ends=True)
        assert [each.code for each in connection.answers] == codes
        assert connection.asked_to_begin == asked_to_begin
        call.on_reset()
