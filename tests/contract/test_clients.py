"""Triton's own clients of all four kinds and curl: what each returns or raises, straight and through the gateway."""

from __future__ import annotations

import asyncio
import queue
import re
import shutil
import subprocess
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

from tests.contract.conftest import BothWays
from tests.contract.ledger import compare

CLIENTS: dict[str, tuple[str, ModuleType, Callable[..., Any]]] = {
    "http": ("http", tritonclient.http, tritonclient.http.InferenceServerClient),
    "http.aio": ("http", tritonclient.http, tritonclient.http.aio.InferenceServerClient),
    "grpc": ("grpc", tritonclient.grpc, tritonclient.grpc.InferenceServerClient),
    "grpc.aio": ("grpc", tritonclient.grpc, tritonclient.grpc.aio.InferenceServerClient),
}
VALUES = np.arange(6, dtype=np.int32)
STRINGS = np.array(["a", "bé", ""], dtype=np.object_)


def inputs(module: ModuleType, **options: Any) -> list[Any]:
    tensors = [module.InferInput("INT32", VALUES.shape, "INT32"), module.InferInput("BYTES", STRINGS.shape, "BYTES")]
    for tensor, data in zip(tensors, (VALUES, STRINGS), strict=True):
        tensor.set_data_from_numpy(data, **options)
    return tensors


def one(module: ModuleType, name: str, data: Any, datatype: str) -> list[Any]:
    tensor = module.InferInput(name, data.shape, datatype)
    tensor.set_data_from_numpy(data)
    return [tensor]


def shown(result: Any) -> Any:
    """What a call returned, in a form that can be compared."""
    if hasattr(result, "as_numpy"):
        response = result.get_response()
        outputs = response["outputs"] if isinstance(response, dict) else response.outputs
        names = [output["name"] if isinstance(output, dict) else output.name for output in outputs]
        return [(name, repr(result.as_numpy(name))) for name in names]
    return re.sub(r"\d+", "N", str(result))


CALLS: dict[str, Callable[[ModuleType], tuple[str, tuple[Any, ...], dict[str, Any]]]] = {
    "live": lambda _: ("is_server_live", (), {}),
    "ready": lambda _: ("is_server_ready", (), {}),
    "model ready": lambda _: ("is_model_ready", ("types", "1"), {}),
    "unknown model ready": lambda _: ("is_model_ready", ("nowhere",), {}),
    "server metadata": lambda _: ("get_server_metadata", (), {}),
    "model metadata": lambda _: ("get_model_metadata", ("types",), {}),
    "unknown model's metadata": lambda _: ("get_model_metadata", ("nowhere",), {}),
    "config": lambda _: ("get_model_config", ("types",), {}),
    "statistics": lambda _: ("get_inference_statistics", ("types",), {}),
    "index": lambda _: ("get_model_repository_index", (), {}),
    "load": lambda _: ("load_model", ("spare",), {}),
    "unload": lambda _: ("unload_model", ("spare",), {}),
    "trace settings": lambda _: ("get_trace_settings", (), {}),
    "log settings": lambda _: ("get_log_settings", (), {}),
    "system shared memory": lambda _: ("get_system_shared_memory_status", (), {}),
    "CUDA shared memory": lambda _: ("get_cuda_shared_memory_status", (), {}),
    "infer": lambda module: ("infer", ("types", inputs(module)), {"request_id": "7"}),
    "infer, named outputs": lambda module: ("infer", ("types", inputs(module)), {"outputs": [module.InferRequestedOutput("OUT_INT32")]}),
    "infer, classes": lambda module: (
        "infer", ("classify", one(module, "IN", np.arange(4, dtype=np.float32)[None], "FP32")),
        {"outputs": [module.InferRequestedOutput("SCORES", class_count=2)]}),
    "infer, a sequence": lambda module: (
        "infer", ("accumulate", one(module, "IN", np.ones((1, 1), np.int32), "INT32")),
        {"sequence_id": 901, "sequence_start": True, "sequence_end": True}),
    "infer, a string sequence": lambda module: (
        "infer", ("accumulate_text", one(module, "IN", np.ones((1, 1), np.int32), "INT32")),
        {"sequence_id": "nine", "sequence_start": True, "sequence_end": True}),
    "infer, priority, timeout, parameters": lambda module: (
        "infer", ("facts", one(module, "ANY", np.array([["a"]], dtype=np.object_), "BYTES")),
        {"priority": 1, "timeout": 9_000_000, "parameters": {"a": "b", "n": 3, "t": True}}),
    "infer, an unknown model": lambda module: ("infer", ("nowhere", inputs(module)), {}),
    "infer, a decoupled model": lambda module: ("infer", ("repeat", one(module, "IN", VALUES, "INT32")), {}),
    "infer, a model that fails": lambda module: ("infer",
        ("fails", one(module, "CODE", np.array(["UNAVAILABLE"], dtype=np.object_), "BYTES")), {}),
    "infer, an own header": lambda module: ("infer", ("types", inputs(module)), {"headers": {"x-own": "1"}}),
}  # fmt: skip
HTTP_CALLS: dict[str, Callable[[ModuleType], tuple[str, tuple[Any, ...], dict[str, Any]]]] = {
    "infer, gzip": lambda module: (
        "infer", ("types", inputs(module)), {"request_compression_algorithm": "gzip", "response_compression_algorithm": "gzip"}),
    "infer, deflate": lambda module: (
        "infer", ("types", inputs(module)), {"request_compression_algorithm": "deflate", "response_compression_algorithm": "deflate"}),
    "infer, all JSON": lambda module: (
        "infer", ("types", inputs(module, binary_data=False)), {"outputs": [module.InferRequestedOutput("OUT_BYTES", binary_data=False)]}),
}  # fmt: skip
GRPC_CALLS: dict[str, Callable[[ModuleType], tuple[str, tuple[Any, ...], dict[str, Any]]]] = {
    "infer, gzip": lambda module: ("infer", ("types", inputs(module)), {"compression_algorithm": "gzip"}),
    "load of a broken model": lambda _: ("load_model", ("broken",), {}),
    "infer, a client's time-out": lambda module: (
        "infer", ("patient", one(module, "SECONDS", np.full((1, 1), 1.0, np.float32), "FP32")), {"client_timeout": 0.2}),
}  # fmt: skip

CASES = [
    (kind, name, ask)
    for kind, (frontend, _, _) in CLIENTS.items()
    for name, ask in (CALLS | (HTTP_CALLS if frontend == "http" else GRPC_CALLS)).items()
]


@pytest.mark.parametrize(("kind", "name", "ask"), [pytest.param(*case, id=f"{case[0]}: {case[1]}") for case in CASES])
def test_a_client_gets_the_same(frontends: BothWays, kind: str, name: str, ask: Callable[[ModuleType], Any]) -> None:
    frontend, module, make = CLIENTS[kind]

    async def result_of(address: str) -> Any:
        client = make(address)
        method, arguments, options = ask(module)
        try:
            got = getattr(client, method)(*arguments, **options)
            return shown(await got if asyncio.iscoroutine(got) else got)
        except InferenceServerException as exc:
            return exc.status(), exc.message()
        finally:
            closing = client.close()
            await closing if asyncio.iscoroutine(closing) else None

    compare(f"client {kind}: {name}", *(asyncio.run(result_of(address)) for address in frontends.both(frontend)), repr)


def test_the_grpc_clients_stream(frontends: BothWays) -> None:
    def responses(address: str) -> list[Any]:
        got: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with tritonclient.grpc.InferenceServerClient(address) as client:
            client.start_stream(lambda result, error: got.put((result, error)))
            for number in range(2):
                data = one(tritonclient.grpc, "IN", VALUES, "INT32")
                client.async_stream_infer("repeat", data, request_id=f"{number}", enable_empty_final_response=True)
            seen = [got.get(timeout=10) for _ in range(14)]
            client.stop_stream()
        assert all(error is None for _, error in seen)
        return sorted(str(result.get_response()) for result, _ in seen)

    compare("client grpc: a stream", *map(responses, frontends.both("grpc")), lambda each: f"{len(each)} responses")


def test_the_grpc_aio_clients_stream(frontends: BothWays) -> None:
    async def responses(address: str) -> list[Any]:
        async def requests() -> Any:
            for number in range(2):
                yield {"model_name": "repeat", "inputs": one(tritonclient.grpc, "IN", VALUES, "INT32"), "request_id": f"{number}"}

        async with tritonclient.grpc.aio.InferenceServerClient(address) as client:
            seen = [each async for each in client.stream_infer(requests(), stream_timeout=10)]
        assert all(error is None for _, error in seen)
        return sorted(str(result.get_response()) for result, _ in seen)

    straight, gateway = (asyncio.run(responses(address)) for address in frontends.both("grpc"))
    compare("client grpc.aio: a stream", straight, gateway, lambda each: f"{len(each)} responses")


def test_many_requests_of_one_http_client_at_once(frontends: BothWays) -> None:
    """`async_infer` over a pool of connections, as perf_analyzer uses it."""

    def results(address: str) -> list[Any]:
        with tritonclient.http.InferenceServerClient(address, concurrency=8) as client:
            pending = [client.async_infer("types", inputs(tritonclient.http), request_id=str(number)) for number in range(40)]
            return [(shown(each := request.get_result()), each.get_response()["id"]) for request in pending]

    compare("client http: 40 at once", *map(results, frontends.both("http")), lambda each: f"{len(each)} answers")


CURL: dict[str, tuple[list[str], str]] = {
    "GET": ([], "/v2"),
    "HEAD": (["--head"], "/v2/health/live"),
    "POST JSON": (["--json", '{"inputs":[{"name":"INT32","shape":[1],"datatype":"INT32","data":[1]}]}'], "/v2/models/types/infer"),
    "a large body, which curl sends after Expect": (["--data-binary", "@-", "-H", "Expect: 100-continue"], "/v2/models/types/infer"),
    "compressed answer": (["--compressed", "--data", '{"inputs":[{"name":"INT32","shape":[1],"datatype":"INT32","data":[1]}]}'],
        "/v2/models/types/infer"),
    "chunked upload": (["-H", "Transfer-Encoding: chunked", "--data-binary", "@-"], "/v2/models/types/infer"),
    "generate_stream": (["--no-buffer", "--data", '{"text_input":"a","times":3}'], "/v2/models/say/generate_stream"),
    "HTTP/1.0": (["--http1.0"], "/v2"),
    "an upgrade to HTTP/2": (["--http2"], "/v2"),
    "not found": ([], "/nothing"),
}  # fmt: skip
LARGE = b'{"inputs":[{"name":"INT32","shape":[1],"datatype":"INT32","data":[1]}]' + b" " * 100_000 + b"}"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("name", CURL)
def test_curl_prints_the_same(frontends: BothWays, name: str) -> None:
    flags, path = CURL[name]

    def printed(address: str) -> tuple[int, bytes]:
        command = ["curl", "--silent", "--max-time", "10", "--write-out", "%{http_code} %{content_type}", *flags, f"http://{address}{path}"]
        done = subprocess.run(command, input=LARGE, capture_output=True, timeout=20)
        return done.returncode, done.stdout

    compare(f"curl: {name}", *map(printed, frontends.both("http")), lambda each: f"{each[0]} {each[1].splitlines()[-1].decode()}")
