from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from control_plane.api.v2_grpc import GrpcInferRequest
from control_plane.codec.bytes_tensor import encode_bytes_elements
from control_plane.domain.errors import InvalidRequest, UnparsableRequest
from control_plane.domain.inference import InferCall
from control_plane.domain.tensor import DATATYPE_BYTES, MAX_ELEMENTS, Tensor
from control_plane.ports import GrpcCall
from tests.unit.codec.infer_requests import SHAPES


def read(message: bytes) -> InferCall:
    return GrpcInferRequest(GrpcCall("/m", message), None).read()


def message(datatype: str = "FP32", shape: tuple[int, ...] = (1,), raw: list[bytes] | None = None) -> service_pb2.ModelInferRequest:
    """One input X with these raw contents."""
    request = service_pb2.ModelInferRequest(model_name="m", model_version="3", id="17", raw_input_contents=raw or [])
    request.inputs.add(name="X", datatype=datatype, shape=shape)
    return request


def test_tells_model_version_id_and_tensors() -> None:
    assert read(message(raw=[b"\0\0\0\0"]).SerializeToString()) == InferCall("m", "3", "17", (Tensor("X", "FP32", (1,)),))


def test_typed_contents_are_left_to_triton() -> None:
    request = message(shape=(3,))
    request.inputs[0].contents.fp32_contents.append(1.0)
    assert read(request.SerializeToString()).inputs == (Tensor("X", "FP32", (3,)),)


def test_an_empty_message_is_left_to_triton() -> None:
    assert read(b"") == InferCall("", "", "", ())


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        pytest.param(message("FP8"), "invalid datatype", id="an unknown datatype"),
        pytest.param(message(""), "invalid datatype", id="no datatype"),
        pytest.param(message(shape=(2**32, 2**31)), "more elements", id="a product of 2**63"),
        pytest.param(message(shape=(2**62, 2**62, 0)), "more elements", id="an overflow before an empty dimension"),
        pytest.param(message(shape=(MAX_ELEMENTS + 1,)), "more elements", id="one dimension beyond the limit"),
        pytest.param(message(raw=[b"\0\0\0"]), "Expected 4, got 3", id="too few bytes"),
        pytest.param(message(raw=[b"\0" * 5]), "Expected 4, got 5", id="too many bytes"),
        pytest.param(message(raw=[b""]), "Expected 4, got 0", id="no bytes"),
        pytest.param(message(raw=[b"\0" * 4] * 2), "for 1 inputs of model 'm', got 2", id="more contents than inputs"),
        pytest.param(message("BYTES", raw=[b"\xff\xff\xff\xff"]), "incomplete string data", id="a length beyond the buffer"),
        pytest.param(message("BYTES", (2,), [encode_bytes_elements([b"a"])]), "expected 2 string", id="fewer strings than the shape"),
    ],
)
def test_refuses_as_invalid(request_: service_pb2.ModelInferRequest, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        read(request_.SerializeToString())


def test_refuses_a_negative_dimension() -> None:
    with pytest.raises(UnparsableRequest, match="-1 is not an unsigned"):
        read(message(shape=(-1,)).SerializeToString())


def test_a_million_huge_dimensions_are_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="more elements"):
        read(message(shape=(2**31 - 1,) * 300_000).SerializeToString())


def test_inputs_in_shared_memory_have_no_contents() -> None:
    request = message(raw=[b"\0\0\0\0"])
    entry = request.inputs.add(name="S", datatype="FP32", shape=(100,))
    entry.parameters["shared_memory_region"].string_param = "r"
    assert [tensor.name for tensor in read(request.SerializeToString()).inputs] == ["X", "S"]
    request.raw_input_contents.append(b"\0" * 400)
    with pytest.raises(InvalidRequest, match="got 2"):
        read(request.SerializeToString())


_TENSORS = st.lists(
    st.builds(
        Tensor,
        st.text(max_size=5).filter(str.isprintable),
        st.sampled_from(sorted(DATATYPE_BYTES)),
        SHAPES,
    ),
    min_size=1,
    max_size=4,
)


@given(tensors=_TENSORS, data=st.data())
def test_valid_messages_are_accepted_and_one_byte_more_in_any_content_is_not(tensors: list[Tensor], data: st.DataObject) -> None:
    request = service_pb2.ModelInferRequest(model_name="m")
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(data.draw(_contents(tensor)))
    assert read(request.SerializeToString()).inputs == tuple(tensors)
    at = data.draw(st.integers(0, len(tensors) - 1))
    request.raw_input_contents[at] += b"\0"
    with pytest.raises(InvalidRequest):
        read(request.SerializeToString())


def _contents(tensor: Tensor) -> st.SearchStrategy[bytes]:
    count = 1
    for dimension in tensor.shape:
        count *= dimension
    if tensor.datatype == "BYTES":
        return st.lists(st.binary(max_size=5), min_size=count, max_size=count).map(encode_bytes_elements)
    size = count * DATATYPE_BYTES[tensor.datatype]
    return st.binary(min_size=size, max_size=size)


@given(raw=st.binary(max_size=200))
def test_any_bytes_end_in_an_answer(raw: bytes) -> None:
    _read_or_refuse(raw)


@given(at=st.integers(0, 40), inserted=st.binary(max_size=4), skipped=st.integers(0, 3))
def test_a_damaged_message_ends_in_an_answer(at: int, inserted: bytes, skipped: int) -> None:
    whole = message("BYTES", (2,), [encode_bytes_elements([b"ab", b"c"])]).SerializeToString()
    _read_or_refuse(whole[:at] + inserted + whole[at + skipped :])


def _read_or_refuse(raw: bytes) -> None:
    with suppress(InvalidRequest, UnparsableRequest):
        assert isinstance(read(raw), InferCall)
