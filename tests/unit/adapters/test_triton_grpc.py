"""Against a real gRPC server that plays Triton."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from control_plane.adapters.triton_grpc import TritonGrpc
from control_plane.domain.errors import ControlPlaneError, DeadlineExceeded, ModelLoadFailed, UpstreamFailed, UpstreamUnavailable
from control_plane.domain.model import ModelState, ModelVersion
from control_plane.ports import GrpcAnswer, GrpcCall
from tests.aio import run

Handler = Callable[[bytes, Any], Awaitable[bytes]]
SERVICE = "/inference.GRPCInferenceService/"
CALL = GrpcCall("/any.Service/Method", b"message", (("x-trace", "7"), ("x-bin", b"\x00\xff")))


class FakeServer(grpc.GenericRpcHandler):
    """Answers any method by `handle`; notes what arrives."""

    def __init__(self, handle: Handler) -> None:
        self.handle = handle
        self.arrivals: asyncio.Queue[tuple[str, bytes, Any]] = asyncio.Queue()
        self.cancelled = asyncio.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        async def handle(message: bytes, context: Any) -> bytes:
            self.arrivals.put_nowait((handler_call_details.method, message, context))
            try:
                return await self.handle(message, context)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise

        return grpc.unary_unary_rpc_method_handler(handle)


@asynccontextmanager
async def triton(handle: Handler) -> AsyncIterator[tuple[TritonGrpc, FakeServer]]:
    fake = FakeServer(handle)
    server = grpc.aio.server(handlers=(fake,), options=(("grpc.max_receive_message_length", -1),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = TritonGrpc("127.0.0.1", port)
    try:
        yield client, fake
    finally:
        await client.close()
        await server.stop(0)


async def echo(message: bytes, context: Any) -> bytes:
    return message


async def never(message: bytes, context: Any) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


def aborting(code: grpc.StatusCode, details: str = "why", trailing: tuple[tuple[str, str | bytes], ...] = ()) -> Handler:
    async def handle(message: bytes, context: Any) -> bytes:
        await context.abort(code, details, trailing)
        raise AssertionError

    return handle


def answering(message: Any) -> Handler:
    async def handle(_: bytes, context: Any) -> bytes:
        encoded: bytes = message.SerializeToString()
        return encoded

    return handle


class TestUnary:
    def test_bytes_and_metadata_travel_as_they_are(self) -> None:
        async def main() -> None:
            async with triton(echo) as (client, fake):
                assert await client.unary(CALL, timeout_s=10) == GrpcAnswer(b"message", 0, "")
                method, message, context = await fake.arrivals.get()
                assert (method, message) == ("/any.Service/Method", b"message")
                assert set(CALL.metadata) <= {tuple(pair) for pair in context.invocation_metadata()}

        run(main())

    def test_a_message_beyond_grpcs_default_limit(self) -> None:
        async def main() -> None:
            async with triton(echo) as (client, _):
                answer = await client.unary(GrpcCall("/m", bytes(8 << 20)), timeout_s=10)
                assert len(answer.message) == 8 << 20

        run(main())

    @pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
    def test_any_status_is_an_answer_with_its_text_and_trailing_metadata(self, code: grpc.StatusCode) -> None:
        trailing = (("x-a", "1"), ("x-b-bin", b"\x00\xff"))

        async def main() -> None:
            async with triton(aborting(code, "why \u00e4", trailing)) as (client, _):
                assert await client.unary(CALL, timeout_s=10) == GrpcAnswer(b"", code.value[0], "why \u00e4", trailing)

        run(main())

    def test_the_deadline_travels_and_is_an_answer(self) -> None:
        async def main() -> None:
            async with triton(never) as (client, fake):
                answer = await client.unary(CALL, timeout_s=0.2)
                assert answer.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
                await fake.cancelled.wait()

        run(main())

    def test_cancelling_cancels_the_call_in_triton(self) -> None:
        async def main() -> None:
            async with triton(never) as (client, fake):
                async with asyncio.TaskGroup() as tasks:
                    task = tasks.create_task(client.unary(CALL, timeout_s=30))
                    await fake.arrivals.get()
                    task.cancel()
                assert task.cancelled()
                await fake.cancelled.wait()

        run(main())

    def test_nobody_there_is_an_answer(self) -> None:
        async def main() -> None:
            client = TritonGrpc("127.0.0.1", 1)
            answer = await client.unary(CALL, timeout_s=5)
            assert answer.code == grpc.StatusCode.UNAVAILABLE.value[0]
            await client.close()

        run(main())

    def test_closing_ends_a_call_in_flight_as_unavailable_and_not_as_cancelled(self) -> None:
        """grpc.aio raises CancelledError there, which would end the caller's task as if somebody had cancelled it."""

        async def main() -> None:
            async with triton(never) as (client, fake):
                async with asyncio.TaskGroup() as tasks:
                    task = tasks.create_task(client.unary(CALL, timeout_s=30))
                    await fake.arrivals.get()
                    await client.close()
                assert task.result().code == grpc.StatusCode.UNAVAILABLE.value[0]

        run(main())

    def test_after_closing_a_call_is_unavailable(self) -> None:
        async def main() -> None:
            async with triton(echo) as (client, _):
                await client.close()
                assert (await client.unary(CALL, timeout_s=5)).code == grpc.StatusCode.UNAVAILABLE.value[0]

        run(main())

    def test_an_ipv6_address(self) -> None:
        async def main() -> None:
            server = grpc.aio.server(handlers=(FakeServer(echo),))
            client = TritonGrpc("::1", server.add_insecure_port("[::1]:0"))
            await server.start()
            assert (await client.unary(CALL, timeout_s=5)).message == b"message"
            await client.close()
            await server.stop(0)

        run(main())


class TestControl:
    @pytest.mark.parametrize("method", ["load", "unload"])
    def test_names_the_model(self, method: str) -> None:
        async def main() -> None:
            async with triton(answering(service_pb2.RepositoryModelLoadResponse())) as (client, fake):
                await getattr(client, method)("a", timeout_s=10)
                path, message, _ = await fake.arrivals.get()
                assert path == SERVICE + f"RepositoryModel{method.capitalize()}"
                assert service_pb2.RepositoryModelLoadRequest.FromString(message).model_name == "a"

        run(main())

    @pytest.mark.parametrize(
        ("code", "error"),
        [
            (grpc.StatusCode.INVALID_ARGUMENT, ModelLoadFailed),
            (grpc.StatusCode.INTERNAL, ModelLoadFailed),
            (grpc.StatusCode.NOT_FOUND, ModelLoadFailed),
            (grpc.StatusCode.UNAVAILABLE, UpstreamUnavailable),
            (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceeded),
        ],
    )
    @pytest.mark.parametrize("method", ["load", "unload"])
    def test_that_fails_tells_tritons_text(self, method: str, code: grpc.StatusCode, error: type[ControlPlaneError]) -> None:
        async def main() -> None:
            async with triton(aborting(code, "bad weights")) as (client, _):
                with pytest.raises(error, match=f"RepositoryModel{method.capitalize()}: bad weights"):
                    await getattr(client, method)("a", timeout_s=10)

        run(main())

    def test_a_load_that_never_ends_is_a_deadline(self) -> None:
        async def main() -> None:
            async with triton(never) as (client, _):
                with pytest.raises(DeadlineExceeded):
                    await client.load("a", timeout_s=0.2)

        run(main())

    def test_closing_ends_a_load_in_flight_as_unavailable(self) -> None:
        async def main() -> None:
            async with triton(never) as (client, fake):
                async with asyncio.TaskGroup() as tasks:
                    task = tasks.create_task(_failure(client.load("a", timeout_s=30)))
                    await fake.arrivals.get()
                    await client.close()
                assert isinstance(task.result(), UpstreamUnavailable)

        run(main())

    def test_cancelling_a_load_is_a_cancellation(self) -> None:
        async def main() -> None:
            async with triton(never) as (client, fake):
                async with asyncio.TaskGroup() as tasks:
                    task = tasks.create_task(client.load("a", timeout_s=30))
                    await fake.arrivals.get()
                    task.cancel()
                assert task.cancelled()

        run(main())

    def test_after_closing_every_call_is_unavailable(self) -> None:
        async def main() -> None:
            async with triton(echo) as (client, _):
                await client.close()
                for call in (client.index(), client.load("a", timeout_s=1), client.memory_bytes()):
                    assert isinstance(await _failure(call), UpstreamUnavailable)
                assert not await client.is_live()

        run(main())

    def test_index(self) -> None:
        response = service_pb2.RepositoryIndexResponse()
        response.models.add(name="a", version="2", state="READY")
        response.models.add(name="a", version="1", state="UNAVAILABLE", reason="unloaded")
        response.models.add(name="never-loaded")

        async def main() -> None:
            async with triton(answering(response)) as (client, _):
                assert await client.index() == [
                    ModelVersion("a", "2", ModelState.READY, ""),
                    ModelVersion("a", "1", ModelState.UNAVAILABLE, "unloaded"),
                    ModelVersion("never-loaded", "", ModelState.UNAVAILABLE, ""),
                ]

        run(main())

    def test_an_index_that_fails(self) -> None:
        async def main() -> None:
            async with triton(aborting(grpc.StatusCode.INTERNAL, "disk")) as (client, _):
                with pytest.raises(UpstreamFailed, match="RepositoryIndex: disk"):
                    await client.index()

        run(main())

    def test_memory_is_summed_where_the_backend_tells_it(self) -> None:
        response = service_pb2.ModelStatisticsResponse()
        told = response.model_stats.add(name="a")
        told.memory_usage.add(type="CPU", byte_size=3)
        told.memory_usage.add(type="GPU", byte_size=4)
        response.model_stats.add(name="silent")

        async def main() -> None:
            async with triton(answering(response)) as (client, _):
                assert await client.memory_bytes() == {"a": 7}

        run(main())


class TestLiveness:
    @pytest.mark.parametrize("live", [True, False])
    def test_as_triton_says(self, live: bool) -> None:
        async def main() -> None:
            async with triton(answering(service_pb2.ServerLiveResponse(live=live))) as (client, _):
                assert await client.is_live() is live

        run(main())

    @pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
    def test_an_error_is_not_live(self, code: grpc.StatusCode) -> None:
        async def main() -> None:
            async with triton(aborting(code)) as (client, _):
                assert not await client.is_live()

        run(main())

    def test_one_that_hangs_is_not_live_after_a_second(self) -> None:
        async def main() -> None:
            async with triton(never) as (client, _):
                started_s = asyncio.get_running_loop().time()
                assert not await client.is_live()
                assert asyncio.get_running_loop().time() - started_s < 5.0

        run(main())


async def _failure(call: Awaitable[object]) -> Exception:
    try:
        await call
    except Exception as exc:
        return exc
    raise AssertionError("it did not fail")
