"""gRPC client of Triton, against grpc's own server in Triton's place; `test_client_servers` has other
servers.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import grpc
import pytest

from control_plane.core.endpoints import TcpAddress
from control_plane.core.infer_call import SendFailure
from control_plane.protocols.grpc import GrpcAnswer, GrpcHead
from control_plane.triton.adapters.grpc.client import GrpcClient
from control_plane.triton.ports import CANCEL_AFTER_S
from tests.fakes.slot import FakeSlot
from tests.unit.triton.adapters.fake_grpc_server import aborting, echo, never, serving
from tests.unit.triton.adapters.grpc_bench import CONTENT_TYPE, DEADLINE_EXCEEDED, call, triton


class TestUnary:
    async def test_bytes_and_metadata_that_is_text_travel_as_they_are(self) -> None:
        async with triton() as (client, fake):
            answer = await client.unary(call(), timeout_s=10)
            assert (answer.code, answer.message) == (0, b"message")
            method, message, _ = await fake.arrivals.get()
            assert (method, message) == ("/any.Service/Method", b"message")
            assert [field for field in fake.metadata[-1] if field[0].startswith("x-")] == [("x-trace", "7")]

    @pytest.mark.parametrize(
        ("method", "shows"), [("RepositoryIndex", True), ("RepositoryModelLoad", False), ("ModelInfer", False), ("ServerLive", False)]
    )
    async def test_shows_triton_the_secret_for_its_index_only(self, method: str, shows: bool) -> None:
        async with serving(echo) as fake:
            client = GrpcClient(TcpAddress("127.0.0.1", fake.port), control_secret="s3cret")
            head = GrpcHead(f"/inference.GRPCInferenceService/{method}", (CONTENT_TYPE,))
            await client.unary(call(head=head), timeout_s=10)
            await client.close()
            assert (("triton-grpc-protocol-tidegate-control", "s3cret") in fake.metadata[-1]) is shows

    @pytest.mark.parametrize("tells", [True, False])
    async def test_the_time_left_is_told_where_the_slots_model_wants_it(self, tells: bool) -> None:
        async with triton() as (client, fake):
            await client.unary(call(), timeout_s=20, slot=FakeSlot(tells_time_left=tells))
            await client.unary(call(), timeout_s=20)
            told = [[value for name, value in metadata if name == "tidegate-time-left-ms"] for metadata in fake.metadata]
            assert [19_000 < int(each) <= 20_000 for each in told[0]] == [True] * tells
            assert told[1] == []

    @pytest.mark.parametrize("size", [0, 1, 1 << 14, 1 << 18, (1 << 18) + 1, 12 << 20])
    async def test_a_message_of_any_size_there_and_back(self, size: int) -> None:
        message = (bytes(range(251)) * (size // 251 + 1))[:size]

        async with triton() as (client, _):
            answer = await client.unary(call(message), timeout_s=20)
            assert answer.message == message

    async def test_an_answer_of_many_pieces_takes_no_longer_for_each_of_them(self) -> None:
        async with triton(never) as (client, fake), asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(client.unary(call(), timeout_s=60))
            await fake.arrivals.get()
            (connection,) = client._open
            (stream,) = connection.state.streams.values()
            began_s = time.process_time()
            for _ in range(60_000):
                stream.listener.on_data(b"x", ends=False)
            assert time.process_time() - began_s < 2.0
            asking.cancel()

    async def test_an_answer_beyond_the_calls_own_bound_is_refused_and_the_connection_stays(self) -> None:
        async with triton() as (client, _):
            bounded = replace(call(b"x" * 100_000), most_answer_bytes=50_000)
            answer = await client.unary(bounded, timeout_s=10)
            assert (answer.code, answer.loss) == (grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], None)
            assert answer.details == "the answer has more than 50000 bytes (TIDEGATE_MAX_BODY_BYTES)"
            assert (await client.unary(call(b"x" * 100_000), timeout_s=10)).code == 0
            assert len(client._open) == 1

    async def test_many_at_once_each_get_their_own_answer(self) -> None:
        async with triton() as (client, _):
            messages = [b"%d" % number * (number * 37 % 9_000) for number in range(300)]
            answers = await asyncio.gather(*(client.unary(call(message), timeout_s=20) for message in messages))
            assert [answer.message for answer in answers] == messages
            assert len(client._open) == 1

    @pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
    async def test_any_status_is_an_answer_with_its_text_and_trailing_metadata(self, code: grpc.StatusCode) -> None:
        async with triton(aborting(code, "why \u00e4", (("x-a", "1"), ("x-b-bin", b"\x00\xff")))) as (client, _):
            answer = await client.unary(call(), timeout_s=10)
            assert (answer.code, answer.details, answer.body) == (code.value[0], "why \u00e4", ())
            assert {(b"x-a", b"1"), (b"x-b-bin", b"AP8")} <= {(name, value.rstrip(b"=")) for name, value in answer.trailers}

    async def test_initial_metadata_comes_with_the_answer(self) -> None:
        async def handle(message: bytes, context: Any) -> bytes:
            await context.send_initial_metadata((("x-early", "1"),))
            return message

        async with triton(handle) as (client, _):
            assert (b"x-early", b"1") in (await client.unary(call(), timeout_s=10)).headers

    async def test_the_deadline_is_an_answer_and_cancels_in_triton(self) -> None:
        async with triton(never) as (client, fake):
            answer = await client.unary(call(), timeout_s=0.2)
            assert (answer.code, answer.details) == (DEADLINE_EXCEEDED, "Deadline Exceeded")
            assert answer.loss is SendFailure.TIMED_OUT
            await fake.cancelled.wait()

    @pytest.mark.parametrize(("own_s", "is_told"), [(None, False), (30.0, True)])
    async def test_a_callers_own_deadline_is_told_to_triton(self, own_s: float | None, is_told: bool) -> None:
        async with triton() as (client, fake):
            await client.unary(call(head=GrpcHead("/m", (CONTENT_TYPE,), own_s)), timeout_s=20)
            _, _, context = await fake.arrivals.get()
            assert (context.time_remaining() is not None and context.time_remaining() < 21) == is_told

    async def test_cancelling_cancels_the_call_in_triton(self) -> None:
        async with triton(never) as (client, fake):
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(client.unary(call(), timeout_s=30))
                await fake.arrivals.get()
                task.cancel()
            assert task.cancelled()
            await fake.cancelled.wait()
            fake.handle = echo
            assert (await client.unary(call(), timeout_s=10)).code == 0

    async def test_a_call_that_is_answered_as_its_caller_leaves_is_let_be(self) -> None:
        """Triton 24.10 sometimes crashes when a cancellation meets the response."""
        may_answer = asyncio.Event()

        async def handle(message: bytes, context: Any) -> bytes:
            await may_answer.wait()
            return message

        async with triton(handle) as (client, fake):
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(client.unary(call(), timeout_s=30))
                await fake.arrivals.get()
                task.cancel()
                may_answer.set()
            assert (await client.unary(call(), timeout_s=10)).code == 0
            await asyncio.sleep(0.1)
            assert not fake.cancelled.is_set()

    @pytest.mark.parametrize("how", ["cancelled", "late"])
    async def test_the_slot_of_a_caller_that_left_is_kept_until_triton_answers(self, how: str) -> None:
        may_answer, slot = asyncio.Event(), FakeSlot()

        async def handle(message: bytes, context: Any) -> bytes:
            await may_answer.wait()
            return message

        async with triton(handle) as (client, fake):
            async with asyncio.TaskGroup() as tasks:
                # A deadline of its own, which Triton would end the call at.
                asked = call(head=GrpcHead("/m", (CONTENT_TYPE,), 0.2))
                task = tasks.create_task(client.unary(asked, timeout_s=0.2 if how == "late" else 20.0, slot=slot))
                await fake.arrivals.get()
                if how == "cancelled":
                    task.cancel()
                else:
                    assert (await task).code == DEADLINE_EXCEEDED
            await asyncio.sleep(0.2)
            assert (slot.kept, fake.cancelled.is_set()) == (1, False)
            may_answer.set()
            await slot.free.wait()
            assert not fake.cancelled.is_set()

    async def test_no_longer_than_for_a_while_and_then_it_is_cancelled(self) -> None:
        slot = FakeSlot()
        async with triton(never) as (client, fake):
            assert (await client.unary(call(), timeout_s=0.1, slot=slot)).loss is SendFailure.TIMED_OUT
            await slot.free.wait()
            await fake.cancelled.wait()
            assert slot.kept == 0

    async def test_longer_where_triton_has_much_to_do_before(self) -> None:
        may_answer, slot = asyncio.Event(), FakeSlot(expected_s=30.0)

        async def handle(message: bytes, context: Any) -> bytes:
            assert context.time_remaining() > 20.0, "Triton is told of a deadline that ends nothing before"
            await may_answer.wait()
            return message

        async with triton(handle) as (client, fake):
            await client.unary(call(head=GrpcHead("/m", (CONTENT_TYPE,), 0.1)), timeout_s=0.1, slot=slot)
            await asyncio.sleep(1.3)
            assert (slot.kept, fake.cancelled.is_set()) == (1, False)
            may_answer.set()
            await slot.free.wait()

    async def test_one_that_takes_long_is_cancelled_and_its_slot_kept_for_as_long_as_it_may_take(self) -> None:
        slot = FakeSlot(expected_s=1.8)
        async with triton(never) as (client, fake):
            await client.unary(call(), timeout_s=0.1, slot=slot)
            await fake.cancelled.wait()
            assert slot.kept == 1
            await slot.free.wait()

    async def test_what_is_superfluous_is_cancelled_after_a_pause(self) -> None:
        """And not as late as what its caller has left: it has had a second for its answer then."""
        loop, slot = asyncio.get_running_loop(), FakeSlot(is_superfluous=True)
        async with triton(never) as (client, fake), asyncio.TaskGroup() as tasks:
            task = tasks.create_task(client.unary(call(), timeout_s=20, slot=slot))
            await fake.arrivals.get()
            task.cancel()
            left_s = loop.time()
            await slot.was_kept.wait()
            await fake.cancelled.wait()
            assert CANCEL_AFTER_S - 0.002 <= loop.time() - left_s < 1.0  # the loop counts whole milliseconds
            assert slot.kept == 0

    async def test_a_connection_that_breaks_ends_it(self) -> None:
        slot = FakeSlot()
        async with triton(never) as (client, _):
            await client.unary(call(), timeout_s=0.1, slot=slot)
            assert slot.kept == 1
            await client.close()
            await slot.free.wait()

    async def test_a_large_message_does_not_hold_up_small_ones(self) -> None:
        async with triton() as (client, _):
            async with asyncio.TaskGroup() as tasks:
                large = [tasks.create_task(client.unary(call(bytes(4 << 20)), timeout_s=20)) for _ in range(3)]
                assert (await client.unary(call(), timeout_s=10)).code == 0
            assert [each.result().code for each in large] == [0] * 3
            assert len(client._open) == 2


def test_an_answers_message_has_no_prefix() -> None:
    assert GrpcAnswer(0, (), (b"\0\0\0\0\1", b"x"), ()).message == b"x"
