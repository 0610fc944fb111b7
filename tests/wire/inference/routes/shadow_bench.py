"""Models that answer requests and their copies, over both protocols."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from control_plane.inference.inference import InferenceService
from control_plane.protocols.grpc import GrpcAnswer, message_answer
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.rollout.shadow import ShadowCopies
from control_plane.triton.ports import GrpcCall
from tests.fakes import FakeHttp, FakeUpstream
from tests.fakes.triton.text_model import FakeTextModel
from tests.wire.grpc_frontend import message_of


@asynccontextmanager
async def shadowed(inference: InferenceService, rights: Any) -> AsyncIterator[ShadowCopies]:
    """Copies that are made while the block lasts; at its end all have been answered."""
    shadow = inference.shadow = ShadowCopies(rights.access, inference.dispatch, inference.observations)
    inference.dispatch.retries.asked(1e6)
    inference.dispatch.retries._asked_requests = 10_000
    running = asyncio.get_running_loop().create_task(shadow.run())
    await asyncio.sleep(0)
    try:
        yield shadow
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def settled(shadow: ShadowCopies) -> None:
    async with asyncio.timeout(5.0):
        while shadow._held or shadow._under_way:
            await asyncio.sleep(0.002)


def place(request: HttpRequest) -> tuple[str, str]:
    """The model and version that a request is sent to."""
    parts = request.target.decode().split("/")
    return parts[3], parts[5] if parts[4] == "versions" else ""


def body(value: float, **more: Any) -> bytes:
    return json.dumps({**more, "inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [value]}]}).encode()


def answering(wrong: float = 0.0, *, binary: bool = False, zipped: str = "") -> Any:
    """Triton with models that double; the next one is wrong by so much."""

    def answer(request: HttpRequest) -> HttpAnswer:
        model, version = place(request)
        value = 2.0 * json.loads(request.body)["inputs"][0]["data"][0] + (wrong if model == "next" or version == "2" else 0.0)
        output: dict[str, Any] = {"name": "Y", "datatype": "FP32", "shape": [1]}
        data, headers = b"", []
        if binary:
            data = np.float32(value).tobytes()
            output["parameters"] = {"binary_data_size": len(data)}
        else:
            output["data"] = [value]
        said = json.dumps({"model_name": model, "outputs": [output]}).encode()
        if binary:
            headers.append((b"Inference-Header-Content-Length", b"%d" % len(said)))
        packed = said + data
        if zipped == model:
            packed = gzip.compress(packed)
            headers.append((b"Content-Encoding", b"gzip"))
        return make_answer(200, packed, headers=headers)

    return answer


def grpc_answering(wrong: float) -> Any:
    def answer(call: GrpcCall) -> GrpcAnswer:
        asked = service_pb2.ModelInferRequest.FromString(message_of(call))
        reply = service_pb2.ModelInferResponse(model_name=asked.model_name, id=asked.id)
        reply.outputs.add(name="Y", datatype="FP32", shape=[1])
        reply.raw_output_contents.append(np.float32(wrong if asked.model_name == "next" else 0.0).tobytes())
        return message_answer(reply.SerializeToString())

    return answer


def text_models(next_model: FakeTextModel) -> FakeUpstream:
    models = {"stable": FakeTextModel("stable"), "next": next_model}
    return FakeUpstream(http=FakeHttp(answer=lambda request: models[place(request)[0]](request)))


async def embed(running: Any, *texts: str) -> None:
    data = json.dumps({"model": "r", "input": texts}).encode()
    client = await running.connect()
    answer = await client.ask(b"POST /v1/embeddings HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))
    assert answer.status == 200, answer.body
