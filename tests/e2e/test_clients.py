"""Unmodified Triton clients of all four kinds, through the gateway."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from tests.e2e.tidegate import Tidegate

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
STRINGS = np.array([["a", "bé"], ["", "longer text"]], dtype=np.object_)

CLIENTS = [
    pytest.param("http", tritonclient.http, tritonclient.http.InferenceServerClient, id="http"),
    pytest.param("http", tritonclient.http, tritonclient.http.aio.InferenceServerClient, id="http.aio"),
    pytest.param("grpc", tritonclient.grpc, tritonclient.grpc.InferenceServerClient, id="grpc"),
    pytest.param("grpc", tritonclient.grpc, tritonclient.grpc.aio.InferenceServerClient, id="grpc.aio"),
]


def with_client(address: str, make: Callable[..., Any], use: Callable[[Callable[..., Any]], Any]) -> Any:
    """Run `use(call)`, where `await call(name, ...)` calls that method of a client, synchronous or not."""

    async def run() -> Any:
        client = make(address)

        async def call(method: str, *args: Any, **kwargs: Any) -> Any:
            result = getattr(client, method)(*args, **kwargs)
            return await result if asyncio.iscoroutine(result) else result

        try:
            return await use(call)
        finally:
            await call("close")

    return asyncio.run(run())


def field(answer: Any, name: str) -> Any:
    """A field of an answer that is a dict over HTTP and a message over gRPC."""
    return answer[name] if isinstance(answer, dict) else getattr(answer, name)


@pytest.mark.parametrize(("door", "module", "make"), CLIENTS)
class TestEveryClient:
    def test_health_and_metadata(self, tidegate: Tidegate, door: str, module: ModuleType, make: Callable[..., Any]) -> None:
        async def use(call: Callable[..., Any]) -> None:
            assert await call("is_server_live")
            assert await call("is_server_ready")
            assert await call("is_model_ready", "echo")
            assert not await call("is_model_ready", "broken")
            assert field(await call("get_server_metadata"), "name") == "triton"
            metadata = await call("get_model_metadata", "echo")
            assert [field(tensor, "name") for tensor in field(metadata, "inputs")] == ["INPUT0", "INPUT1"]
            config = await call("get_model_config", "echo", "1")
            assert field(field(config, "config") if door == "grpc" else config, "max_batch_size") == 8

        with_client(tidegate.address(door), make, use)

    def test_statistics_and_index(self, tidegate: Tidegate, door: str, module: ModuleType, make: Callable[..., Any]) -> None:
        async def use(call: Callable[..., Any]) -> None:
            for arguments in (("echo",), ()):
                statistics = await call("get_inference_statistics", *arguments)
                assert "echo" in [field(line, "name") for line in field(statistics, "model_stats")]
            index = await call("get_model_repository_index")
            lines = index if isinstance(index, list) else index.models
            states = {field(line, "name"): line.get("state", "") if isinstance(line, dict) else line.state for line in lines}
            assert states["text_embedding"] == "READY"
            assert states["broken"] != "READY"

        with_client(tidegate.address(door), make, use)

    def test_infer_mixes_tensors(self, tidegate: Tidegate, door: str, module: ModuleType, make: Callable[..., Any]) -> None:
        async def use(call: Callable[..., Any]) -> None:
            inputs = [module.InferInput("INPUT0", VALUES.shape, "FP32"), module.InferInput("INPUT1", STRINGS.shape, "BYTES")]
            json_first = {"binary_data": False} if door == "http" else {}
            inputs[0].set_data_from_numpy(VALUES, **json_first)
            inputs[1].set_data_from_numpy(STRINGS)
            outputs = [module.InferRequestedOutput("OUTPUT1", **json_first), module.InferRequestedOutput("OUTPUT0")]
            result = await call("infer", "echo", inputs, model_version="1", outputs=outputs, request_id="request-7")
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), VALUES)
            got = [[v.decode() if isinstance(v, bytes) else v for v in row] for row in result.as_numpy("OUTPUT1")]
            assert got == STRINGS.tolist()
            assert field(result.get_response(), "id") == "request-7"
            assert field(result.get_response(), "model_version") == "1"

        with_client(tidegate.address(door), make, use)

    def test_requested_outputs_only(self, tidegate: Tidegate, door: str, module: ModuleType, make: Callable[..., Any]) -> None:
        async def use(call: Callable[..., Any]) -> None:
            tensor = module.InferInput("INPUT0", VALUES.shape, "FP32")
            tensor.set_data_from_numpy(VALUES)
            result = await call("infer", "echo", [tensor], outputs=[module.InferRequestedOutput("OUTPUT0")])
            assert [field(output, "name") for output in field(result.get_response(), "outputs")] == ["OUTPUT0"]

        with_client(tidegate.address(door), make, use)

    @pytest.mark.parametrize(
        ("model", "name", "shape", "says"),
        [
            pytest.param("nowhere", "INPUT0", (2, 3), "unknown model: 'nowhere'", id="unknown model"),
            pytest.param("echo", "INPUT9", (2, 3), "unexpected inference input 'INPUT9'", id="unknown input"),
            pytest.param("echo", "INPUT0", (9, 1), "batch-size must be <= 8", id="batch too large"),
            pytest.param("echo", "INPUT0", (3,), "unexpected shape for input 'INPUT0'", id="wrong rank"),
        ],
    )
    def test_mistakes_get_tritons_words(
        self, tidegate: Tidegate, door: str, module: ModuleType, make: Callable[..., Any], model: str, name: str, shape: Any, says: str
    ) -> None:
        async def use(call: Callable[..., Any]) -> None:
            tensor = module.InferInput(name, shape, "FP32")
            tensor.set_data_from_numpy(np.zeros(shape, dtype=np.float32))
            with pytest.raises(InferenceServerException, match=re.escape(says)):
                await call("infer", model, [tensor])

        with_client(tidegate.address(door), make, use)


def test_grpc_deadline_is_the_callers(tidegate: Tidegate) -> None:
    with tritonclient.grpc.InferenceServerClient(tidegate.address("grpc")) as client:
        tensor = tritonclient.grpc.InferInput("SECONDS", (1, 1), "FP32")
        tensor.set_data_from_numpy(np.full((1, 1), 1.0, dtype=np.float32))
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            client.infer("slow", [tensor], client_timeout=0.2)
