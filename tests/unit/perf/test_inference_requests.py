"""Requests as our own door reads them, and vectors as servers write them."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from perf.inference_requests import Form, last_vector, naive_json, tokens_post, triton_binary, triton_grpc, triton_json

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


def test_tokens() -> None:
    _, headers, body = parts(tokens_post("m", [101, 7, 102]))
    size = int(headers["Inference-Header-Content-Length"])
    described = json.loads(body[:size])["inputs"]
    assert [(each["name"], each["datatype"], each["shape"]) for each in described] == [
        ("INPUT_IDS", "INT64", [1, 3]),
        ("ATTENTION_MASK", "INT64", [1, 3]),
    ]
    assert np.frombuffer(body[size:], dtype=np.int64).tolist() == [101, 7, 102, 1, 1, 1]


def grpc_answer() -> bytes:
    data: bytes = service_pb2.ModelInferResponse(raw_output_contents=[VECTOR.tobytes()]).SerializeToString()
    return data


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        pytest.param(triton_binary("m"), lambda: b'{"outputs":[]}' + VECTOR.tobytes(), id="binary"),
        pytest.param(triton_json("m"), lambda: json.dumps({"outputs": [{"data": VECTOR.tolist()}]}).encode(), id="json"),
        pytest.param(triton_grpc("m"), grpc_answer, id="grpc"),
        pytest.param(naive_json(), lambda: json.dumps({"embeddings": [VECTOR.tolist()]}).encode(), id="naive"),
    ],
)
def test_vectors_come_out_of_answers(form: Form, answer: Callable[[], bytes]) -> None:
    np.testing.assert_allclose(form.vector(answer()), VECTOR, rtol=1e-6)


def test_last_vector_is_the_last() -> None:
    assert last_vector(b"x" * 5 + VECTOR.tobytes()).tolist() == VECTOR.tolist()
