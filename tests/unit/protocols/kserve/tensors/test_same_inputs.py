"""What is the same request, whichever way it comes."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from hypothesis import given
from hypothesis import strategies as st

from control_plane.protocols.kserve.messages import service_pb2
from control_plane.protocols.kserve.tensors.same_inputs import MAX_BYTES, inputs_of_body, inputs_of_message

NUMBERS = {
    "BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "UINT8": np.uint8, "UINT16": np.uint16,
    "UINT32": np.uint32, "UINT64": np.uint64, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip
CONTENTS = {"BOOL": "bool", "INT64": "int64", "UINT64": "uint64", "FP32": "fp32", "FP64": "fp64", "BYTES": "bytes"}


def over_http(tensors: dict[str, tuple[str, Any]], *, binary: bool, **parameters: object) -> tuple[bytes, ...] | None:
    """As the official client sends it, which asks for an output, too."""
    inputs = []
    for name, (datatype, data) in tensors.items():
        inputs.append(http.InferInput(name, data.shape, datatype))
        inputs[-1].set_data_from_numpy(data, binary_data=binary)
    wanted = [http.InferRequestedOutput("y", binary_data=binary)]
    body, size = http.InferenceServerClient.generate_request_body(inputs, outputs=wanted, parameters=parameters or None)
    size = len(body) if size is None else size
    return inputs_of_body(body[:size], body[size:])


def over_grpc(tensors: dict[str, tuple[str, Any]], *, raw: bool = True, **parameters: object) -> tuple[bytes, ...] | None:
    request = service_pb2.ModelInferRequest(model_name="m", id="7")
    for name, (datatype, data) in tensors.items():
        tensor = request.inputs.add(name=name, datatype=datatype, shape=data.shape)
        if raw:
            made = grpc.InferInput(name, data.shape, datatype)
            made.set_data_from_numpy(data)
            request.raw_input_contents.append(made._get_content())
        else:
            field = CONTENTS.get(datatype, "uint" if datatype.startswith("U") else "int")
            elements = [each if isinstance(each, bytes) else each.item() for each in data.ravel()]
            getattr(tensor.contents, f"{field}_contents").extend(elements)
    for key, value in parameters.items():
        setattr(request.parameters[key], {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)], value)
    return inputs_of_message(request)


def all_ways(tensors: dict[str, tuple[str, Any]], **parameters: object) -> list[tuple[bytes, ...] | None]:
    return [
        *(over_http(tensors, binary=binary, **parameters) for binary in (True, False)),
        *(over_grpc(tensors, raw=raw, **parameters) for raw in (True, False)),
    ]


@given(st.sampled_from(sorted(NUMBERS)), st.lists(st.integers(0, 100), min_size=4, max_size=4), st.floats(-1, 1))
def test_numbers_are_the_same_every_way(datatype: str, numbers: list[int], part: float) -> None:
    data = (np.array(numbers) + part * datatype.startswith("FP")).astype(NUMBERS[datatype]).reshape(2, 2)
    first, *others = all_ways({"x": (datatype, data)})
    assert first is not None
    assert others == [first] * 3


def test_texts_and_parameters_are_too_in_whatever_order_inputs_come() -> None:
    x, y = ("BYTES", np.array([["poison", "\u00e4"]], dtype=object)), ("INT32", np.array([7], dtype=np.int32))
    text = ("BYTES", np.array([[b"poison", "\u00e4".encode()]], dtype=object))
    ways = [over_http({"x": x, "y": y}, binary=binary, a=1, b="c", d=True) for binary in (True, False)]
    ways += [over_grpc({"y": y, "x": text}, raw=raw, d=True, b="c", a=1) for raw in (True, False)]
    assert ways[0] is not None
    assert ways == [ways[0]] * 4


@pytest.mark.parametrize(
    "other",
    [
        {"x": ("INT32", np.array([1, 3], dtype=np.int32))},
        {"x": ("INT32", np.array([[1, 2]], dtype=np.int32))},
        {"x": ("UINT32", np.array([1, 2], dtype=np.uint32))},
        {"z": ("INT32", np.array([1, 2], dtype=np.int32))},
        {"x": ("INT32", np.array([1, 2], dtype=np.int32)), "y": ("INT32", np.array([1], dtype=np.int32))},
    ],
    ids=["data", "shape", "type", "name", "one more"],
)
def test_others_are_others(other: dict[str, tuple[str, Any]]) -> None:
    one = {"x": ("INT32", np.array([1, 2], dtype=np.int32))}
    for this, that in zip(all_ways(one), all_ways(other), strict=True):
        assert this != that
    assert over_http(one, binary=True, a=1) != over_http(one, binary=True, a=2)
    assert over_grpc(one, a=1) != over_grpc(one)


@pytest.mark.parametrize(
    "body",
    [
        b"{}", b"[]", b"{", b'{"inputs":[{"name":"x","datatype":"FP16","shape":[1],"data":[1]}]}',
        b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[1000]}]}',
        b'{"inputs":[{"name":"x","datatype":"INT8","shape":[2],"data":[1,[2]]}]}',
        b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":[null]}]}',
        b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"parameters":{"shared_memory_region":"r"}}]}',
        b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["\\ud800"]}]}',
        orjson.dumps({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a" * MAX_BYTES]}]}),
    ],
    ids=["nothing", "a list", "no JSON", "FP16 in JSON", "too large a number", "ragged", "null", "shared memory", "a surrogate", "large"],
)  # fmt: skip
def test_what_cannot_be_told_is_none(body: bytes) -> None:
    assert inputs_of_body(body, b"") is None


def test_nor_what_is_in_shared_memory() -> None:
    request = service_pb2.ModelInferRequest()
    request.inputs.add(name="x", datatype="INT8", shape=[1]).parameters["shared_memory_region"].string_param = "r"
    assert inputs_of_message(request) is None
    request = service_pb2.ModelInferRequest()
    request.inputs.add(name="x", datatype="FP16", shape=[1])
    assert inputs_of_message(request) is None
