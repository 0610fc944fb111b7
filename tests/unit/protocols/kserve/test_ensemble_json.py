"""Tests of HTTP requests that the gateway answers from parts' tensors; tests/contract compares their answers with Triton's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from control_plane.core.errors import ControlPlaneError, InvalidRequest, NotSupported, PayloadTooLarge
from control_plane.core.tensor import RawTensor, Tensor
from control_plane.protocols.kserve.ensemble_json import MAX_JSON_BYTES, MAX_JSON_ELEMENTS, GivenTensors, read_given, render_answer

_X: dict[str, Any] = {"name": "X", "datatype": "UINT8", "shape": [2], "data": [1, 2]}
_BINARY = {"name": "X", "datatype": "UINT8", "shape": [2], "parameters": {"binary_data_size": 2}}


def _given(binary: bytes = b"", **said: Any) -> GivenTensors:
    header = json.dumps(said).encode()
    return read_given(bytearray(header + binary), len(header))


def _raw(name: str, data: bytes) -> tuple[str, RawTensor]:
    return name, RawTensor(Tensor(name, "UINT8", (len(data),)), data)


def test_data_in_json_and_behind_it_become_equal_tensors() -> None:
    one, other = _given(inputs=[_X]), _given(b"\1\2", inputs=[_BINARY])
    assert one.inputs["X"].tensor == other.inputs["X"].tensor == Tensor("X", "UINT8", (2,))
    assert bytes(one.inputs["X"].data) == bytes(other.inputs["X"].data) == b"\1\2"


def test_binary_data_is_divided_in_the_order_of_its_inputs() -> None:
    found = _given(b"\1\2\3\4", inputs=[_BINARY, {**_X, "name": "Y"}, {**_BINARY, "name": "Z"}])
    assert {name: bytes(raw.data) for name, raw in found.inputs.items()} == {"X": b"\1\2", "Y": b"\1\2", "Z": b"\3\4"}


def test_a_named_output_overrides_what_is_said_of_all() -> None:
    outputs = [{"name": "A", "parameters": {"binary_data": True}}, {"name": "B"}]
    found = _given(inputs=[_X], outputs=outputs, parameters={"binary_data_output": True, "temperature": 0.5, "sequence_id": 0})
    assert (found.outputs, found.is_binary("A"), found.is_binary("B")) == (("A", "B"), True, False)
    assert found.parameters == {"temperature": 0.5}  # which the parts get
    assert _given(inputs=[_X], parameters={"binary_data_output": True}).is_binary("A")
    assert not _given(inputs=[_X]).is_binary("A")


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        pytest.param({"id": "7", "inputs": [_X, _X]}, InvalidRequest, r"\[request id: 7\] input 'X' already exists", id="twice"),
        pytest.param({"inputs": [{**_X, "data": 1}]}, InvalidRequest, "must be an array", id="no array"),
        pytest.param({"inputs": [_X], "outputs": [1]}, InvalidRequest, "Unable to parse 'outputs'", id="outputs"),
        pytest.param({"inputs": [_X], "outputs": [{"name": 1}]}, InvalidRequest, "Unable to parse 'outputs'", id="an output's name"),
        pytest.param({"inputs": [_X], "outputs": {"name": "Y"}}, InvalidRequest, "Unable to parse 'outputs'", id="no array of outputs"),
        pytest.param({"inputs": [_X], "parameters": [1]}, InvalidRequest, "Unable to parse 'parameters'", id="parameters"),
        pytest.param({"inputs": [_X], "parameters": {"a": [1]}}, InvalidRequest, "Unable to parse 'parameters'", id="a parameter"),
        pytest.param({"id": "i" * MAX_JSON_BYTES, "inputs": [_X]}, PayloadTooLarge, "send the tensors as binary data", id="much JSON"),
    ],
)
def test_what_cannot_be_read_is_refused(said: dict[str, Any], error: type[ControlPlaneError], text: str) -> None:
    with pytest.raises(error, match=text):
        _given(**said)


def test_a_raw_binary_request_is_refused() -> None:
    with pytest.raises(NotSupported, match="name its inputs in JSON"):
        read_given(b"\1\2", 0)


def test_an_answer_has_tritons_form_to_the_byte() -> None:
    answer = render_answer("m", "1", "7", _given(inputs=[_X]), [_raw("A", b"\1\2"), _raw("B", b"\3")])
    of_sequence = '"sequence_id":0,"sequence_start":false,"sequence_end":false'
    assert bytes(answer.body).decode() == (
        f'{{"id":"7","model_name":"m","model_version":"1","parameters":{{{of_sequence},{of_sequence}}},"outputs":['
        '{"name":"A","datatype":"UINT8","shape":[2],"data":[1,2]},{"name":"B","datatype":"UINT8","shape":[1],"data":[3]}]}'
    )
    assert b"application/json" in answer.head


def test_binary_outputs_follow_the_json_whose_length_the_head_says() -> None:
    outputs = [{"name": "A", "parameters": {"binary_data": True}}, {"name": "B"}]
    answer = render_answer("m", "1", "", _given(inputs=[_X], outputs=outputs), [_raw("A", b"\1\2"), _raw("B", b"\3")])
    length = len(answer.body) - 2
    assert b"Inference-Header-Content-Length: %d\r\n" % length in answer.head
    assert bytes(answer.body[length:]) == b"\1\2"
    said = json.loads(answer.body[:length])["outputs"]
    assert (said[0]["parameters"], said[1]["data"]) == ({"binary_data_size": 2}, [3])


def test_an_answer_whose_binary_outputs_are_empty_is_plain_json_as_tritons() -> None:
    answer = render_answer("m", "1", "", _given(inputs=[_X], parameters={"binary_data_output": True}), [_raw("A", b"")])
    assert b"application/json" in answer.head
    assert b"Inference-Header" not in answer.head


def test_large_outputs_have_to_be_asked_for_as_binary_data() -> None:
    with pytest.raises(PayloadTooLarge, match="ask for binary data"):
        render_answer("m", "1", "", _given(inputs=[_X]), [_raw("A", bytes(MAX_JSON_ELEMENTS + 1))])
