"""gRPC calls that administer the server: answered only to callers on this machine."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from control_plane.core.errors import ControlPlaneError, ModelLoadFailed, ModelNotFound, UpstreamUnavailable
from control_plane.core.model import ModelOverride
from control_plane.frontends.kserve.grpc import ADMINISTRATION_METHODS, SERVICE, SHARED_MEMORY_METHODS
from tests.fakes import FakeModels
from tests.wire.grpc_frontend import INFER, frontend, infer_message


class TestAdministration:
    """Calls that are answered only to callers on this machine."""

    async def test_load(self) -> None:
        async with frontend() as it:
            request = service_pb2.RepositoryModelLoadRequest(model_name="m")
            assert await it.call(SERVICE + "RepositoryModelLoad", request.SerializeToString()) == b""
            assert it.models.asked == [("load", "m", None)]
            assert it.upstream.grpc.requests == []

    async def test_load_with_a_config_and_files(self) -> None:
        async with frontend() as it:
            request = service_pb2.RepositoryModelLoadRequest(model_name="m")
            request.parameters["config"].string_param = "{}"
            request.parameters["file:1/model.onnx"].bytes_param = b"\xff"
            await it.call(SERVICE + "RepositoryModelLoad", request.SerializeToString())
            assert it.models.asked == [("load", "m", ModelOverride("{}", {"file:1/model.onnx": b"\xff"}))]

    @pytest.mark.parametrize("dependents", [True, False])
    async def test_unload(self, dependents: bool) -> None:
        async with frontend() as it:
            request = service_pb2.RepositoryModelUnloadRequest(model_name="m")
            request.parameters["unload_dependents"].bool_param = dependents
            assert await it.call(SERVICE + "RepositoryModelUnload", request.SerializeToString()) == b""
            assert it.models.asked == [("unload", "m", dependents)]

    @pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload"])
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (ModelLoadFailed("bad weights", upstream_code=3), grpc.StatusCode.INVALID_ARGUMENT),
            (ModelLoadFailed("no disk"), grpc.StatusCode.INTERNAL),
            (UpstreamUnavailable("starting"), grpc.StatusCode.UNAVAILABLE),
        ],
    )
    async def test_what_fails_is_told_as_triton_tells_it(self, method: str, error: ControlPlaneError, code: grpc.StatusCode) -> None:
        async with frontend(models=FakeModels(failures={"m": error})) as it:
            request = service_pb2.RepositoryModelLoadRequest(model_name="m")
            failure = await it.failure(SERVICE + method, request.SerializeToString())
            assert (failure.code(), failure.details()) == (code, str(error))

    async def test_a_model_that_no_repository_has_is_told_in_tritons_words(self) -> None:
        async with frontend(models=FakeModels(failures={"m": ModelNotFound("our own words")})) as it:
            request = service_pb2.RepositoryModelLoadRequest(model_name="m")
            failure = await it.failure(SERVICE + "RepositoryModelLoad", request.SerializeToString())
            assert failure.code() is grpc.StatusCode.INTERNAL
            assert failure.details() == "failed to load 'm', failed to poll from model repository"

    @pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload"])
    async def test_a_repositorys_name_is_not_supported(self, method: str) -> None:
        async with frontend() as it:
            request = service_pb2.RepositoryModelLoadRequest(model_name="m", repository_name="r")
            assert (await it.failure(SERVICE + method, request.SerializeToString())).code() is grpc.StatusCode.UNIMPLEMENTED
            assert it.models.asked == []

    @pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload"])
    async def test_a_message_that_cannot_be_read(self, method: str) -> None:
        async with frontend() as it:
            assert (await it.failure(SERVICE + method, b"\xff")).code() is grpc.StatusCode.INVALID_ARGUMENT
            assert it.models.asked == []

    @pytest.mark.parametrize("method", ADMINISTRATION_METHODS)
    async def test_what_is_tritons_passes(self, method: str) -> None:
        async with frontend() as it:
            assert await it.call(method, b"\x12\x01m") == b"\x12\x01m"

    @pytest.mark.parametrize("method", SHARED_MEMORY_METHODS)
    async def test_shared_memory_is_refused_until_it_is_allowed(self, method: str) -> None:
        async with frontend() as it:
            error = await it.failure(method, b"")
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "--allow-shared-memory" in error.details()
            assert it.upstream.grpc.requests == []
        async with frontend(allow_shared_memory=True) as it:
            assert await it.call(method, b"x") == b"x"

    @pytest.mark.parametrize(
        "method", [*ADMINISTRATION_METHODS, *SHARED_MEMORY_METHODS, SERVICE + "RepositoryModelLoad", SERVICE + "RepositoryModelUnload"]
    )
    async def test_from_elsewhere_it_is_refused(self, method: str) -> None:
        async with frontend(allow_shared_memory=True, peers_are_local=False) as it:
            assert (await it.failure(method, b"")).code() is grpc.StatusCode.PERMISSION_DENIED
            assert it.upstream.grpc.requests == []
            assert it.models.asked == []
            assert await it.call(INFER, infer_message()) == infer_message()

    @pytest.mark.parametrize("where", ["inputs", "outputs"])
    async def test_an_inference_in_shared_memory_is_refused_until_it_is_allowed(self, where: str) -> None:
        request = service_pb2.ModelInferRequest(model_name="m")
        entry = getattr(request, where).add(name="X", **({"datatype": "FP32", "shape": [1]} if where == "inputs" else {}))
        entry.parameters["shared_memory_region"].string_param = "r"

        async with frontend() as it:
            assert (await it.failure(INFER, request.SerializeToString())).code() is grpc.StatusCode.PERMISSION_DENIED
            assert it.upstream.grpc.requests == []
        async with frontend(allow_shared_memory=True) as it:
            assert await it.call(INFER, request.SerializeToString()) == request.SerializeToString()
