"""Requests as our own frontends read them, and vectors as servers write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from perf.load.inference_requests import Form, binary_vector, naive_json, tokens_post, triton_binary, triton_grpc, triton_json

TEXT = "a naïve “text”"
VECTOR = np.arange(384, dtype=np.float32) / 7


def parts(request: bytes) -> tuple[str, dict[str, str], bytes]:
    """Path, headers and body; the body is as long as the head says."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["Content-Length"]) == len(body)
    return first.split()[1], headers, body


def test_binary_text() -> None:
    path, headers, body = parts(triton_binary("m").encode(TEXT))
    size = int(headers["Inference-Header-Content-Length"])
    described, data = json.loads(body[:size]), body[size:]
    assert path == "/v2/models/m/infer"
    assert described["parameters"] == {"binary_data_output": True}
    assert described["inputs"] == [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": len(data)}}]
    assert data == len(TEXT.encode()).to_bytes(4, "little") + TEXT.encode()


def test_json_text() -> None:
    path, _, body = parts(triton_json("m").encode(TEXT))
    assert path == "/v2/models/m/infer"
    assert json.loads(body) == {"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": [TEXT]}]}


def test_naive_text() -> None:
    path, headers, body = parts(naive_json().encode(TEXT))
    assert (path, headers["Content-Type"]) == ("/embed", "application/json")
    assert json.loads(body) == {"texts": [TEXT]}


def test_grpc_text() -> None:
    framed = triton_grpc("m").encode(TEXT)
    assert framed[:5] == b"\0" + (len(framed) - 5).to_bytes(4, "big")
    message = service_pb2.ModelInferRequest.FromString(framed[5:])
    assert (message.model_name, message.inputs[0].name, list(message.inputs[0].shape)) == ("m", "TEXT", [1, 1])
    assert message.raw_input_contents[0] == len(TEXT.encode()).to_bytes(4, "little") + TEXT.encode()


def test_tokens_are_padded_to_the_longest_text() -> None:
    _, headers, body = parts(tokens_post("m", [101, 7, 102], [101, 102]))
    size = int(headers["Inference-Header-Content-Length"])
    described = json.loads(body[:size])["inputs"]
    assert [(each["name"], each["datatype"], each["shape"]) for each in described] == [
        ("INPUT_IDS", "INT64", [2, 3]),
        ("ATTENTION_MASK", "INT64", [2, 3]),
    ]
    assert np.frombuffer(body[size:], dtype=np.int64).tolist() == [101, 7, 102, 101, 102, 0, 1, 1, 1, 1, 1, 0]


TENSORS = {
    "EMBEDDING": ("FP32", [1, 384], VECTOR),
    "TOKENS": ("INT32", [1, 1], np.array([7], dtype=np.int32)),
}
"""What the encoder answers; an ensemble of it answers in the other order."""


def binary_answer(names: Sequence[str]) -> bytes:
    outputs = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": array.nbytes}}
        for name, (datatype, shape, array) in ((name, TENSORS[name]) for name in names)
    ]
    return json.dumps({"model_name": "mö", "outputs": outputs}, ensure_ascii=False).encode() + b"".join(
        TENSORS[name][2].tobytes() for name in names
    )


def json_answer(names: Sequence[str]) -> bytes:
    return json.dumps({"outputs": [{"name": name, "data": TENSORS[name][2].tolist()} for name in names]}).encode()


def grpc_answer(names: Sequence[str]) -> bytes:
    message = service_pb2.ModelInferResponse(raw_output_contents=[TENSORS[name][2].tobytes() for name in names])
    for name in names:
        message.outputs.add(name=name, datatype=TENSORS[name][0], shape=TENSORS[name][1])
    data: bytes = message.SerializeToString()
    return data


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["EMBEDDING"], id="alone"),
        pytest.param(["EMBEDDING", "TOKENS"], id="first"),
        pytest.param(["TOKENS", "EMBEDDING"], id="last"),
    ],
)
@pytest.mark.parametrize(
    ("form", "answer"),
    [
        pytest.param(triton_binary("m"), binary_answer, id="binary"),
        pytest.param(triton_json("m"), json_answer, id="json"),
        pytest.param(triton_grpc("m"), grpc_answer, id="grpc"),
    ],
)
def test_the_embedding_is_found_by_its_name(form: Form, answer: Callable[[Sequence[str]], bytes], names: list[str]) -> None:
    np.testing.assert_allclose(form.vector(answer(names)), VECTOR, rtol=1e-6)


def test_the_embedding_of_a_naive_answer() -> None:
    np.testing.assert_allclose(naive_json().vector(json.dumps({"embeddings": [VECTOR.tolist()]}).encode()), VECTOR, rtol=1e-6)


def test_an_answer_without_the_embedding_is_told() -> None:
    with pytest.raises(ValueError, match=r"no output EMBEDDING: \['TOKENS'\]"):
        binary_vector(binary_answer(["TOKENS"]))
