"""Tests of ModelInferRequests that the gateway answers from parts' tensors, and of those to the parts."""

from __future__ import annotations

from typing import Any

import pytest

from control_plane.core.errors import InvalidRequest, PayloadTooLarge, UpstreamFailed
from control_plane.core.tensor import RawTensor, Tensor
from control_plane.protocols.kserve.ensemble_json import MAX_JSON_BYTES
from control_plane.protocols.kserve.ensemble_proto import part_outputs, part_request, read_given, render_answer
from control_plane.protocols.kserve.messages import service_pb2


def _request(**fields: Any) -> Any:
    return service_pb2.ModelInferRequest(model_name="m", id="7", **fields)


def _raw(name: str, data: bytes) -> RawTensor:
    return RawTensor(Tensor(name, "UINT8", (len(data),)), data)


def test_raw_contents_and_written_out_elements_become_equal_tensors() -> None:
    raw = _request(raw_input_contents=[b"\1\2"])
    raw.inputs.add(name="X", datatype="UINT8", shape=[2])
    written = _request()
    written.inputs.add(name="X", datatype="UINT8", shape=[2]).contents.uint_contents.extend([1, 2])
    one, other = (read_given(each.SerializeToString()).inputs["X"] for each in (raw, written))
    assert one.tensor == other.tensor == Tensor("X", "UINT8", (2,))
    assert bytes(one.data) == bytes(other.data) == b"\1\2"


def test_strings_that_are_written_out_get_their_framing() -> None:
    request = _request()
    request.inputs.add(name="X", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"ab")
    assert read_given(request.SerializeToString()).inputs["X"].data == b"\2\0\0\0ab"


def test_parameters_go_on_to_the_parts_but_for_those_of_sequences() -> None:
    request = _request()
    for name, field, value in (("s", "string_param", "x"), ("i", "int64_param", -1), ("b", "bool_param", True), ("d", "double_param", 0.5)):
        setattr(request.parameters[name], field, value)
    request.parameters["sequence_id"].int64_param = 0
    given = read_given(request.SerializeToString())
    part = service_pb2.ModelInferRequest.FromString(b"".join(part_request("p", "2", {"A": _raw("X", b"\1")}, ["B"], given.parameters)))
    assert dict(part.parameters) == {name: request.parameters[name] for name in "sibd"}
    assert (part.model_name, part.model_version, part.inputs[0].name, part.outputs[0].name) == ("p", "2", "A", "B")
    assert list(part.raw_input_contents) == [b"\1"]


def _twice() -> Any:
    request = _request(raw_input_contents=[b"\1", b"\1"])
    for _ in range(2):
        request.inputs.add(name="X", datatype="UINT8", shape=[1])
    return request


def _written(datatype: str, shape: list[int], *elements: int) -> Any:
    request = _request()
    request.inputs.add(name="X", datatype=datatype, shape=shape).contents.uint_contents.extend(elements)
    return request


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        pytest.param(_twice(), r"\[request id: 7\] input 'X' already exists", id="twice"),
        pytest.param(_written("UINT8", [1], 256), "a number beyond UINT8", id="too large"),
        pytest.param(_written("UINT8", [2], 1), "has 1 elements, and its shape has 2", id="too few"),
        pytest.param(_written("FP16", [1], 1), "has to be in raw_input_contents", id="FP16"),
    ],
)
def test_what_cannot_be_read_is_refused(request_: Any, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        read_given(request_.SerializeToString())


def test_much_beside_the_raw_contents_is_refused() -> None:
    with pytest.raises(PayloadTooLarge, match="beside raw_input_contents"):
        read_given(_written("UINT32", [MAX_JSON_BYTES], *([1] * MAX_JSON_BYTES)).SerializeToString())


def test_a_message_of_very_many_fields_is_refused() -> None:
    with pytest.raises(PayloadTooLarge, match="more than 4096 fields"):
        read_given(_request(raw_input_contents=[b""] * 5000).SerializeToString())


def test_a_parts_outputs_are_read_without_a_copy_of_their_data() -> None:
    answer = service_pb2.ModelInferResponse(raw_output_contents=[b"\1\2", b""])
    answer.outputs.add(name="A", datatype="UINT8", shape=[2])
    answer.outputs.add(name="B", datatype="UINT8", shape=[0])
    found = part_outputs(answer.SerializeToString())
    assert {name: (raw.tensor.shape, bytes(raw.data)) for name, raw in found.items()} == {"A": ((2,), b"\1\2"), "B": ((0,), b"")}
    assert isinstance(found["A"].data, memoryview)


@pytest.mark.parametrize("message", [b"\xff", service_pb2.ModelInferResponse(raw_output_contents=[b"\1"]).SerializeToString()])
def test_a_parts_answer_that_cannot_be_read_is_its_servers_failure(message: bytes) -> None:
    with pytest.raises(UpstreamFailed):
        part_outputs(message)


def test_an_answer_is_a_triton_ensembles() -> None:
    answer = service_pb2.ModelInferResponse.FromString(b"".join(render_answer("m", "1", "7", [("A", _raw("X", b"\1"))])))
    assert (answer.model_name, answer.model_version, answer.id, answer.outputs[0].name) == ("m", "1", "7", "A")
    assert list(answer.raw_output_contents) == [b"\1"]
    assert set(answer.parameters) == {"sequence_id", "sequence_start", "sequence_end"}
