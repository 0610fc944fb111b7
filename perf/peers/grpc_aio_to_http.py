"""The other route for gRPC: grpc.aio in front, Triton's HTTP endpoint over a pool of keep-alive connections behind.

Spares grpc.aio's client, and pays with converting: protobuf to JSON and back, tensors as they are. Inference with raw tensors only.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import grpc
import orjson
import uvloop
from tritonclient.grpc import service_pb2

from perf.peers import arguments
from perf.peers.grpc_aio import Unary, serve

_HEADER_LENGTH = "Inference-Header-Content-Length"


async def main(port: int, upstream: str) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256, keepalive_timeout=75), auto_decompress=False) as session:

        async def infer(message: bytes, context: Any) -> bytes:
            request = service_pb2.ModelInferRequest.FromString(message)
            head, url = _head_of(request), f"http://{upstream}/v2/models/{request.model_name}/infer"
            body, headers = b"".join((head, *request.raw_input_contents)), {_HEADER_LENGTH: str(len(head)), "Accept-Encoding": "identity"}
            async with session.post(url, data=body, headers=headers) as answer:
                content = await answer.read()
            if answer.status != 200:
                await context.abort(grpc.StatusCode.INTERNAL, content.decode(errors="replace"))
            return _message_of(content, int(answer.headers[_HEADER_LENGTH]))

        def answering(path: str) -> Unary:
            return infer

        await serve(port, answering)


def _head_of(request: Any) -> bytes:
    inputs = [
        {"name": each.name, "datatype": each.datatype, "shape": list(each.shape), "parameters": {"binary_data_size": len(raw)}}
        for each, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    ]
    return orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})


def _message_of(content: bytes, header_length: int) -> bytes:
    head, at = orjson.loads(content[:header_length]), header_length
    message = service_pb2.ModelInferResponse(model_name=head["model_name"], model_version=head["model_version"])
    for each in head["outputs"]:
        message.outputs.add(name=each["name"], datatype=each["datatype"], shape=each["shape"])
        size = each["parameters"]["binary_data_size"]
        message.raw_output_contents.append(content[at : at + size])
        at += size
    answer: bytes = message.SerializeToString()
    return answer


if __name__ == "__main__":
    options = arguments()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(options.port, options.upstream))
