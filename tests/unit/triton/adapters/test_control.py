"""Model control client against a real gRPC server in Triton's place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2

from control_plane.core.endpoints import TcpAddress
from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelLoadFailed, UpstreamFailed, UpstreamUnavailable
from control_plane.core.fingerprint import LoadedConfig
from control_plane.core.model import ModelOverride, ModelState, ModelVersion
from control_plane.triton.adapters.control import LINES_PER_TURN, ControlClient, compute_times_of
from control_plane.triton.compute_time import ComputeTime
from tests.aio import run
from tests.unit.triton.adapters.fake_grpc_server import FakeServer, Handler, aborting, never, serving

SERVICE = "/inference.GRPCInferenceService/"


@asynccontextmanager
async def triton(handle: Handler) -> AsyncIterator[tuple[ControlClient, FakeServer]]:
    async with serving(handle) as fake:
        client = ControlClient(TcpAddress("127.0.0.1", fake.port))
        try:
            yield client, fake
        finally:
            await client.close()


def answering(message: Any) -> Handler:
    async def handle(_: bytes, context: Any) -> bytes:
        encoded: bytes = message.SerializeToString()
        return encoded

    return handle


def loaded_config(text: str) -> LoadedConfig:
    """Decoding of Triton's ModelConfig response."""

    async def main() -> LoadedConfig:
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
        async with triton(answering(service_pb2.ModelConfigResponse(config=config))) as (client, fake):
            found = await client.loaded_config("a")
            path, message, _ = await fake.arrivals.get()
            assert (path, service_pb2.ModelConfigRequest.FromString(message).name) == (SERVICE + "ModelConfig", "a")
            return found

    return run(main())


class TestControl:
    @pytest.mark.parametrize("method", ["load", "unload"])
    async def test_names_the_model(self, method: str) -> None:
        async with triton(answering(service_pb2.RepositoryModelLoadResponse())) as (client, fake):
            await getattr(client, method)("a", timeout_s=10)
            path, message, _ = await fake.arrivals.get()
            assert path == SERVICE + f"RepositoryModel{method.capitalize()}"
            assert service_pb2.RepositoryModelLoadRequest.FromString(message).model_name == "a"

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
    async def test_that_fails_tells_tritons_text(self, method: str, code: grpc.StatusCode, error: type[ControlPlaneError]) -> None:
        async with triton(aborting(code, "bad weights")) as (client, _):
            with pytest.raises(error) as caught:
                await getattr(client, method)("a", timeout_s=10)
        assert str(caught.value).endswith("bad weights")
        if isinstance(caught.value, ModelLoadFailed):  # the frontends answer as Triton did, word for word
            assert (str(caught.value), caught.value.upstream_code) == ("bad weights", code.value[0])

    async def test_an_override_travels_as_tritons_parameters(self) -> None:
        async with triton(answering(service_pb2.RepositoryModelLoadResponse())) as (client, fake):
            await client.load("a", override=ModelOverride("{}", {"file:1/model.py": b"\xff"}), timeout_s=10)
            await client.unload("a", unload_dependents=True, timeout_s=10)
            load = service_pb2.RepositoryModelLoadRequest.FromString((await fake.arrivals.get())[1])
            unload = service_pb2.RepositoryModelUnloadRequest.FromString((await fake.arrivals.get())[1])
        assert (load.parameters["config"].string_param, load.parameters["file:1/model.py"].bytes_param) == ("{}", b"\xff")
        assert unload.parameters["unload_dependents"].bool_param

    async def test_without_an_override_there_are_no_parameters(self) -> None:
        async with triton(answering(service_pb2.RepositoryModelLoadResponse())) as (client, fake):
            await client.load("a", timeout_s=10)
            await client.unload("a", timeout_s=10)
            for message in (service_pb2.RepositoryModelLoadRequest, service_pb2.RepositoryModelUnloadRequest):
                assert not message.FromString((await fake.arrivals.get())[1]).parameters

    @pytest.mark.parametrize(
        ("text", "response_cache", "is_repeatable"),
        [
            ("", False, True),
            ("response_cache { enable: true }", True, True),
            ("response_cache { enable: false }", False, True),
            ("response_cache { enable: true } sequence_batching { }", True, False),
            ("response_cache { enable: true } model_transaction_policy { decoupled: true }", True, False),
            ("model_transaction_policy { decoupled: false }", False, True),
        ],
    )
    def test_a_loaded_configuration_says_whether_answers_are_kept(self, text: str, response_cache: bool, is_repeatable: bool) -> None:
        found = loaded_config(text)
        assert (found.response_cache, found.is_repeatable) == (response_cache, is_repeatable)

    @pytest.mark.parametrize(("value", "may_be"), [("true", True), ("TRUE", True), ("false", False), ("yes", False), ("", False)])
    def test_a_loaded_configuration_says_whether_a_request_may_be_computed_twice(self, value: str, may_be: bool) -> None:
        declared = f'parameters {{ key: "tidegate_repeatable" value {{ string_value: "{value}" }} }}'
        assert loaded_config(declared).may_be_computed_twice is may_be
        assert not loaded_config("").may_be_computed_twice

    def test_a_loaded_configuration_says_where_to_look(self) -> None:
        found = loaded_config(
            'ensemble_scheduling { step { model_name: "a" } step { model_name: "b" } step { model_name: "a" } }'
            'parameters { key: "x" value { string_value: "../x" } } parameters { key: "y" value { string_value: "" } }'
        )
        assert (found.steps, found.parameters) == ({"a", "b"}, {"../x"})

    def test_equal_configurations_have_equal_contents_and_others_do_not(self) -> None:
        def parameters(*names: str) -> str:
            return " ".join(f'parameters {{ key: "{name}" value {{ string_value: "{name}" }} }}' for name in names)

        assert loaded_config(parameters("x", "y", "z")).content == loaded_config(parameters("z", "y", "x")).content
        assert len({loaded_config(text).content for text in ("", "max_batch_size: 1", "max_batch_size: 2", 'name: "x"')}) == 4

    async def test_shows_triton_the_secret_where_there_is_one(self) -> None:
        async with serving(answering(service_pb2.RepositoryModelLoadResponse())) as fake:
            for secret in ("s3cret", ""):
                client = ControlClient(TcpAddress("127.0.0.1", fake.port), control_secret=secret)
                await client.load("a", timeout_s=10)
                await client.close()
                assert dict(fake.metadata[-1]).get("triton-grpc-protocol-tidegate-control", "") == secret

    async def test_the_servers_version(self) -> None:
        async with triton(answering(service_pb2.ServerMetadataResponse(name="triton", version="2.51.0"))) as (client, _):
            assert await client.server_version() == "2.51.0"

    async def test_a_load_that_never_ends_is_a_deadline(self) -> None:
        async with triton(never) as (client, _):
            with pytest.raises(DeadlineExceeded):
                await client.load("a", timeout_s=0.2)

    async def test_closing_ends_a_load_in_flight_as_unavailable(self) -> None:
        async with triton(never) as (client, fake):
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(_failure(client.load("a", timeout_s=30)))
                await fake.arrivals.get()
                await client.close()
            assert isinstance(task.result(), UpstreamUnavailable)

    async def test_cancelling_a_load_is_a_cancellation(self) -> None:
        async with triton(never) as (client, fake):
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(client.load("a", timeout_s=30))
                await fake.arrivals.get()
                task.cancel()
            assert task.cancelled()

    async def test_after_closing_every_call_is_unavailable(self) -> None:
        async with triton(never) as (client, _):
            await client.close()
            for call in (client.index(), client.load("a", timeout_s=1), client.memory_bytes()):
                assert isinstance(await _failure(call), UpstreamUnavailable)
            assert not await client.is_live()

    async def test_index(self) -> None:
        response = service_pb2.RepositoryIndexResponse()
        response.models.add(name="a", version="2", state="READY")
        response.models.add(name="a", version="1", state="UNAVAILABLE", reason="unloaded")
        response.models.add(
            name="b", version="1", state="UNAVAILABLE", reason="Internal: ValueError: x\n\nAt:\n  /b/1/model.py(4): initialize\n"
        )
        response.models.add(name="never-loaded")

        async with triton(answering(response)) as (client, _):
            assert await client.index() == [
                ModelVersion("a", "2", ModelState.READY, ""),
                ModelVersion("a", "1", ModelState.UNAVAILABLE, "unloaded"),
                ModelVersion("b", "1", ModelState.UNAVAILABLE, "Internal: ValueError: x"),
                ModelVersion("never-loaded", "", ModelState.UNAVAILABLE, ""),
            ]

    async def test_an_index_is_read_once_for_as_long_as_it_is_the_same(self) -> None:
        response = service_pb2.RepositoryIndexResponse()
        for number in range(3000):  # a thread reads so many
            response.models.add(name=f"m{number}", version="1", state="READY")
        async with triton(answering(response)) as (client, _):
            first = await client.index()
            assert await client.index() is first
            response.models.add(name="new", version="1", state="LOADING")
            assert await client.index() == [*first, ModelVersion("new", "1", ModelState.LOADING, "")]

    async def test_a_state_that_is_no_state_of_ours_is_that_of_a_model_that_is_not_served(self) -> None:
        response = service_pb2.RepositoryIndexResponse()
        response.models.add(name="a", version="1", state="UNKNOWN")
        async with triton(answering(response)) as (client, _):
            assert await client.index() == [ModelVersion("a", "1", ModelState.UNAVAILABLE, "")]

    async def test_an_index_that_is_none_fails(self) -> None:
        async def handle(_: bytes, context: Any) -> bytes:
            return b"\xff\xff"

        async with triton(handle) as (client, _):
            with pytest.raises(UpstreamFailed, match="RepositoryIndex: the answer cannot be read"):
                await client.index()

    async def test_an_index_that_fails(self) -> None:
        async with triton(aborting(grpc.StatusCode.INTERNAL, "disk")) as (client, _):
            with pytest.raises(UpstreamFailed, match="RepositoryIndex: disk"):
                await client.index()

    async def test_memory_is_summed_where_the_backend_tells_it(self) -> None:
        response = service_pb2.ModelStatisticsResponse()
        told = response.model_stats.add(name="a")
        told.memory_usage.add(type="CPU", byte_size=3)
        told.memory_usage.add(type="GPU", byte_size=4)
        response.model_stats.add(name="a", version="2").memory_usage.add(type="CPU", byte_size=5)
        response.model_stats.add(name="silent")

        async with triton(answering(response)) as (client, _):
            assert await client.memory_bytes() == {"a": 12}


class TestLiveness:
    async def test_at_an_ipv6_address(self) -> None:
        server = grpc.aio.server(handlers=(FakeServer(answering(service_pb2.ServerLiveResponse(live=True))),))
        port = server.add_insecure_port("[::1]:0")
        await server.start()
        client = ControlClient(TcpAddress("::1", port))
        assert await client.is_live()
        await client.close()
        await server.stop(0)

    @pytest.mark.parametrize("live", [True, False])
    async def test_as_triton_says(self, live: bool) -> None:
        async with triton(answering(service_pb2.ServerLiveResponse(live=live))) as (client, _):
            assert await client.is_live() is live

    @pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
    async def test_an_error_is_not_live(self, code: grpc.StatusCode) -> None:
        async with triton(aborting(code)) as (client, _):
            assert not await client.is_live()

    async def test_one_that_hangs_is_not_live_after_a_second(self) -> None:
        async with triton(never) as (client, _):
            started_s = asyncio.get_running_loop().time()
            assert not await client.is_live()
            assert asyncio.get_running_loop().time() - started_s < 60.0


async def _failure(call: Awaitable[object]) -> Exception:
    try:
        await call
    except Exception as exc:
        return exc
    raise AssertionError("it did not fail")


def _counted(*batches: tuple[int, int, int]) -> list[service_pb2.InferBatchStatistics]:
    return [
        service_pb2.InferBatchStatistics(batch_size=size, compute_infer=service_pb2.StatisticDuration(count=count, ns=ns))
        for size, count, ns in batches
    ]


async def test_compute_times_count_a_batch_once_and_all_versions_together() -> None:
    answer = service_pb2.ModelStatisticsResponse()
    answer.model_stats.add(name="a", version="1", batch_stats=_counted((1, 3, 30), (8, 2, 50)))
    answer.model_stats.add(name="a", version="2", batch_stats=_counted((1, 1, 7)))
    answer.model_stats.add(name="idle", version="1")

    async with triton(answering(answer)) as (client, fake):
        assert await client.compute_times() == {"a": ComputeTime(20, 87), "idle": ComputeTime(0, 0)}
        path, message, _ = await fake.arrivals.get()
        assert (path, message) == (SERVICE + "ModelStatistics", b"")


@pytest.mark.parametrize(("models", "turns"), [(LINES_PER_TURN - 1, 0), (3 * LINES_PER_TURN, 3)])
def test_the_statistics_of_many_models_are_added_up_in_several_turns(models: int, turns: int) -> None:
    lines = [service_pb2.ModelStatistics(name=str(number), batch_stats=_counted((2, 1, 5))) for number in range(models)]
    adding = compute_times_of(lines)
    for _ in range(turns):
        assert adding.send(None) is None
    with pytest.raises(StopIteration) as end:
        adding.send(None)
    assert end.value.value == {str(number): ComputeTime(2, 5) for number in range(models)}


async def test_compute_times_of_a_triton_that_is_away_are_unavailable() -> None:
    async with triton(aborting(grpc.StatusCode.UNAVAILABLE)) as (client, _):
        with pytest.raises(UpstreamUnavailable):
            await client.compute_times()
