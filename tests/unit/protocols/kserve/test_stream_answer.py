from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from control_plane.core.errors import InvalidRequest
from control_plane.protocols.kserve.stream_answer import stream_answer
from control_plane.protocols.protobuf_fields import fields, varint


@given(
    id_=st.text(max_size=5),
    parameter=st.none() | st.text(max_size=5),
    contents=st.lists(st.binary(max_size=300), max_size=3),
)
def test_is_what_protobuf_itself_would_write(id_: str, parameter: str | None, contents: list[bytes]) -> None:
    answer = service_pb2.ModelInferResponse(model_name="m", model_version="1", id=id_)
    if parameter is not None:
        answer.parameters["a"].string_param = parameter
    for number, content in enumerate(contents):
        answer.outputs.add(name=f"Y{number}", datatype="UINT8", shape=[len(content)])
        answer.raw_output_contents.append(content)
    serialised = answer.SerializeToString()
    answer.parameters["triton_final_response"].bool_param = True
    expected = service_pb2.ModelStreamInferResponse(infer_response=answer)
    assert service_pb2.ModelStreamInferResponse.FromString(stream_answer(serialised)) == expected
    if parameter is None:
        assert stream_answer(memoryview(serialised)) == expected.SerializeToString()


@given(st.integers(0, 2**64 - 1))
def test_a_number_reads_as_it_was_written(number: int) -> None:
    message = b"\x08" + varint(number)
    assert [(tag, bytes(field)) for tag, field, _ in fields(memoryview(message))] == [(8, message)]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x08", id="no number"),
        pytest.param(b"\x08" + b"\xff" * 10, id="a number without end"),
        pytest.param(b"\x0a\x05abcd", id="a length beyond the end"),
        pytest.param(b"\x09abcdefg", id="seven of eight bytes"),
        pytest.param(b"\x0dabc", id="three of four bytes"),
        pytest.param(b"\x0b", id="a group"),
    ],
)
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a protobuf message"):
        list(fields(memoryview(message)))
