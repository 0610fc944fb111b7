"""One text or one sequence of tokens as the bytes of a request, in every form that a scenario compares, and the vector in its answer."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

Vector = NDArray[np.float32]
Tensor = TypeVar("Tensor")

OUTPUT = "EMBEDDING"

_BINARY_OUTPUT = '"parameters":{"binary_data_output":true}'


@dataclass(frozen=True, slots=True)
class Form:
    """How a server is asked for a text's embedding."""

    protocol: str
    encode: Callable[[str], bytes]
    vector: Callable[[bytes], Vector]


def http_post(path: str, body: bytes, headers: str = "Content-Type: application/json\r\n") -> bytes:
    """A whole request."""
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def binary_post(model: str, head: str, data: bytes) -> bytes:
    """A v2 inference with JSON `head` and binary tensors."""
    headers = f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {len(head)}\r\n"
    return http_post(f"/v2/models/{model}/infer", head.encode() + data, headers)


def tokens_post(model: str, *texts: Sequence[int]) -> bytes:
    """A v2 inference of INPUT_IDS and ATTENTION_MASK of these texts, [number of texts, longest length] each."""
    longest = max(map(len, texts))
    tokens = np.zeros((2, len(texts), longest), np.int64)
    for row, token_ids in enumerate(texts):
        tokens[:, row, : len(token_ids)] = token_ids, [1] * len(token_ids)
    inputs = ",".join(
        f'{{"name":"{name}","datatype":"INT64","shape":{[len(texts), longest]},"parameters":{{"binary_data_size":{tokens[0].nbytes}}}}}'
        for name in ("INPUT_IDS", "ATTENTION_MASK")
    )
    return binary_post(model, f'{{"inputs":[{inputs}],{_BINARY_OUTPUT}}}', tokens.tobytes())


def texts_post(model: str, texts: Sequence[str]) -> bytes:
    """A v2 inference of TEXT, [number of texts, 1]."""
    data = b"".join(map(_element, texts))
    tensor = f'{{"name":"TEXT","datatype":"BYTES","shape":[{len(texts)},1],"parameters":{{"binary_data_size":{len(data)}}}}}'
    return binary_post(model, f'{{"inputs":[{tensor}],{_BINARY_OUTPUT}}}', data)


def naive_post(texts: Sequence[str]) -> bytes:
    """A request with these texts to a server of `perf/peers/naive`: `POST /embed` with JSON."""
    return http_post("/embed", json.dumps({"texts": list(texts)}).encode())


def binary_vector(body: bytes) -> Vector:
    """The embedding of a v2 answer with binary tensors, which follow its JSON in the order in which that lists them.

    Raises ValueError when it has none.
    """
    head, at = json.JSONDecoder().raw_decode(body.decode("latin-1"))  # a byte is a character, so `at` counts bytes
    tensors = {}
    for each in head["outputs"]:
        tensors[each["name"]] = body[at : (at := at + each["parameters"]["binary_data_size"])]
    return np.frombuffer(_embedding(tensors), dtype=np.float32)


def triton_binary(model: str) -> Form:
    return Form("http", lambda text: texts_post(model, [text]), binary_vector)


def triton_json(model: str) -> Form:
    def encode(text: str) -> bytes:
        inputs = [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": [text]}]
        return http_post(f"/v2/models/{model}/infer", json.dumps({"inputs": inputs}).encode())

    def vector(body: bytes) -> Vector:
        return _vector(_embedding({each["name"]: each["data"] for each in json.loads(body)["outputs"]}))

    return Form("http", encode, vector)


def triton_grpc(model: str) -> Form:
    def encode(text: str) -> bytes:
        message = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[_element(text)])
        message.inputs.add(name="TEXT", datatype="BYTES", shape=[1, 1])
        data: bytes = message.SerializeToString()
        return b"\0" + struct.pack(">I", len(data)) + data

    def vector(body: bytes) -> Vector:
        message = service_pb2.ModelInferResponse.FromString(body)
        names = [each.name for each in message.outputs]
        return np.frombuffer(_embedding(dict(zip(names, message.raw_output_contents, strict=True))), dtype=np.float32)

    return Form("grpc", encode, vector)


def naive_json() -> Form:
    """`POST /embed` of `peers/naive`."""

    return Form("http", lambda text: naive_post([text]), lambda body: _vector(json.loads(body)["embeddings"][0]))


def _element(text: str) -> bytes:
    """One of a BYTES tensor: its length, then itself."""
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _embedding(tensors: Mapping[str, Tensor]) -> Tensor:
    """Find the embedding by name: in which order a model's outputs come is nobody's promise."""
    if OUTPUT not in tensors:
        raise ValueError(f"an answer has no output {OUTPUT}: {list(tensors)}")
    return tensors[OUTPUT]


def _vector(values: Any) -> Vector:
    return np.asarray(values, dtype=np.float32)
