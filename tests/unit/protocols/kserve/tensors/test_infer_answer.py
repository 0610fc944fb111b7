from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.utils import serialize_byte_tensor

from control_plane.core.errors import InvalidRequest
from control_plane.protocols.kserve.tensors.infer_answer import json_outputs, proto_outputs

TENSORS: dict[str, Any] = {
    "F": np.array([[1.5, -2.0]], np.float32),
    "H": np.array([0.5], np.float16),
    "I": np.array([2**62, -1], np.int64),
    "U": np.array([255], np.uint8),
    "B": np.array([True, False]),
    "S": np.array([b"caf\xc3\xa9", b""], object),
    "E": np.zeros((0, 4), np.float32),
}
TYPES = {"F": "FP32", "H": "FP16", "I": "INT64", "U": "UINT8", "B": "BOOL", "S": "BYTES", "E": "FP32"}


def raw(tensor: Any) -> bytes:
    return bytes(serialize_byte_tensor(tensor).item() if tensor.dtype == object else tensor.tobytes())


def described(name: str) -> dict[str, Any]:
    return {"name": name, "datatype": TYPES[name], "shape": list(TENSORS[name].shape)}


def same(found: dict[str, Any]) -> None:
    assert {name: (each.dtype, each.shape, each.tolist()) for name, each in found.items()} == {
        name: (each.dtype, each.shape, each.tolist()) for name, each in TENSORS.items() if name in found
    }


def test_tensors_behind_the_json() -> None:
    outputs = [{**described(name), "parameters": {"binary_data_size": len(raw(each))}} for name, each in TENSORS.items()]
    said = json.dumps({"outputs": outputs}).encode()
    found = json_outputs(said + b"".join(map(raw, TENSORS.values())), len(said))
    assert set(found) == set(TENSORS)
    same(found)


def test_tensors_in_the_json() -> None:
    outputs = [
        {**described(name), "data": [each.decode() for each in tensor] if name == "S" else tensor.ravel().tolist()}
        for name, tensor in TENSORS.items()
    ]
    found = json_outputs(json.dumps({"outputs": outputs}).encode(), None)
    assert set(found) == set(TENSORS)
    same(found)


def test_messages_with_raw_contents_and_without() -> None:
    message = service_pb2.ModelInferResponse()
    for name, tensor in TENSORS.items():
        message.outputs.add(**described(name))
        message.raw_output_contents.append(raw(tensor))
    same(proto_outputs(message.SerializeToString()))
    plain = service_pb2.ModelInferResponse()
    plain.outputs.add(**described("F")).contents.fp32_contents.extend([1.5, -2.0])
    plain.outputs.add(**described("S")).contents.bytes_contents.extend(TENSORS["S"].tolist())
    found = proto_outputs(plain.SerializeToString())
    assert set(found) == {"F", "S"}
    same(found)


def body(**output: Any) -> bytes:
    return json.dumps({"outputs": [{"name": "Y", "datatype": "FP32", "shape": [1], **output}]}).encode()


@pytest.mark.parametrize(
    ("said", "size"),
    [
        pytest.param(b"", None, id="nothing"),
        pytest.param(b"[]", None, id="no object"),
        pytest.param(b'{"outputs":[{}]}', None, id="no name"),
        pytest.param(body(data=[1, 2]), None, id="too many elements"),
        pytest.param(body(data=["a"]), None, id="a text"),
        pytest.param(body(datatype="BF16", data=[1]), None, id="a type that NumPy lacks"),
        pytest.param(body(parameters={"binary_data_size": 4}) + b"\0\0", len(body(parameters={"binary_data_size": 4})), id="cut off"),
        pytest.param(body(parameters={"binary_data_size": "4"}), 10, id="no size"),
        pytest.param(body(datatype="BYTES", shape=[1], parameters={"binary_data_size": 5}) + b"\x09\0\0\0a",
                     len(body(datatype="BYTES", shape=[1], parameters={"binary_data_size": 5})), id="an element is cut off"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(said: bytes, size: int | None) -> None:
    with pytest.raises(InvalidRequest, match="the answer's tensors cannot be read"):
        json_outputs(said, size)


@pytest.mark.parametrize("message", [b"\xff\xff", service_pb2.ModelInferResponse(raw_output_contents=[]).SerializeToString()])
def test_messages_that_say_nothing(message: bytes) -> None:
    if message:
        with pytest.raises(InvalidRequest):
            proto_outputs(message)
    else:
        assert proto_outputs(message) == {}


def test_fewer_raw_contents_than_outputs() -> None:
    message = service_pb2.ModelInferResponse(raw_output_contents=[b"\0\0\0\0"])
    for name in ("a", "b"):
        message.outputs.add(name=name, datatype="FP32", shape=[1])
    with pytest.raises(InvalidRequest):
        proto_outputs(message.SerializeToString())
