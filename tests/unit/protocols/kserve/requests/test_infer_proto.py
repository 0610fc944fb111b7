from __future__ import annotations

from contextlib import nullcontext, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from control_plane.core.errors import InvalidRequest, UnparsableRequest
from control_plane.core.infer_call import InferCall
from control_plane.core.tensor import DATATYPE_BYTES, MAX_ELEMENTS, Tensor
from control_plane.protocols.kserve.requests.infer_proto import small_infer_request
from control_plane.protocols.kserve.tensors.bytes_tensor import encode_bytes_elements
from tests.unit.protocols.kserve.infer_messages import LARGE, message, read
from tests.unit.protocols.kserve.infer_requests import SHAPES


def test_tells_model_version_id_and_tensors() -> None:
    assert read(message(raw=[b"\0\0\0\0"]).SerializeToString()) == InferCall("m", "3", "17", (Tensor("X", "FP32", (1,)),), elements=1)


def _never_parsed(raw: bytes) -> service_pb2.ModelInferRequest:
    raise AssertionError("it was parsed again")


def _unnamed(name: str, data: bytes) -> service_pb2.ModelInferRequest:
    """A request without an id, as clients send one after the other, with one FP32 input."""
    request = service_pb2.ModelInferRequest(model_name=name, raw_input_contents=[data])
    request.inputs.add(name="X", datatype="FP32", shape=(len(data) // 4,))
    return request


def test_one_that_differs_from_an_earlier_one_in_its_data_alone_is_not_parsed_again() -> None:
    first, second = _unnamed("repeated", b"12345678").SerializeToString(), _unnamed("repeated", b"abcdefgh").SerializeToString()
    call = read(first)
    assert small_infer_request(second, _never_parsed) == call == InferCall("repeated", "", "", (Tensor("X", "FP32", (2,)),), elements=2)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(_unnamed("another1", b"12345678"), id="another model"),
        pytest.param(_unnamed("repeated", b"123456781234"), id="more data"),
        pytest.param(message(raw=[b"1234"]), id="with an id"),
    ],
)
def test_one_that_differs_in_anything_else_is(other: service_pb2.ModelInferRequest) -> None:
    read(_unnamed("repeated", b"12345678").SerializeToString())
    with pytest.raises(InvalidRequest, match="parsed again"):
        small_infer_request(other.SerializeToString(), _never_parsed)


def test_strings_are_looked_through_each_time() -> None:
    for content, is_valid in ((b"\2\0\0\0ab", True), (b"\3\0\0\0ab", False)):
        request = service_pb2.ModelInferRequest(model_name="strings", raw_input_contents=[content])
        request.inputs.add(name="X", datatype="BYTES", shape=(1,))
        with nullcontext() if is_valid else pytest.raises(InvalidRequest, match="incomplete string data"):
            read(request.SerializeToString())


def test_what_follows_the_data_is_never_taken_for_data() -> None:
    """A name at the end overrides the first one: were its text taken for data, another model would be asked than is said."""
    data, head = b"later_b_", _unnamed("m_before", b"later_b_").SerializeToString()
    read(head + b"\x0a\x08" + data)
    assert read(head + b"\x0a\x08" + b"later_c_").model_name == "later_c_"


def test_a_longer_one_that_begins_like_a_known_one_is_parsed() -> None:
    known = _unnamed("repeated", b"12345678").SerializeToString()
    read(known)
    assert read(known + b"\x0a\x08another_").model_name == "another_"


def test_typed_contents_are_left_to_triton() -> None:
    request = message(shape=(3,))
    request.inputs[0].contents.fp32_contents.append(1.0)
    assert read(request.SerializeToString()).inputs == (Tensor("X", "FP32", (3,)),)


@pytest.mark.parametrize(
    ("raw", "single", "text_bytes"),
    [
        pytest.param([b"\x02\0\0\0ab\x01\0\0\0c"], [], 3, id="raw"),
        pytest.param([], [b"ab", b"c"], 3, id="one by one"),
        pytest.param([encode_bytes_elements([b"a" * LARGE, b"b"])], [], LARGE + 1, id="much of it, raw"),
        pytest.param([], [b"a" * LARGE, b"b"], None, id="much of it, one by one: the whole message"),
    ],
)
def test_tells_how_long_texts_are(raw: list[bytes], single: list[bytes], text_bytes: int | None) -> None:
    request = message("BYTES", (2,), raw)
    request.inputs[0].contents.bytes_contents.extend(single)
    sent = request.SerializeToString()
    assert read(sent).text_bytes == (len(sent) if text_bytes is None else text_bytes)


def test_only_texts_are_counted() -> None:
    request = message("FP32", (1,), [b"\0\0\0\0", b"\x02\0\0\0ab"])
    request.inputs.add(name="Y", datatype="BYTES", shape=(1,))
    request.inputs.add(name="Z", datatype="BYTES", shape=(1,)).parameters["shared_memory_region"].string_param = "r"
    assert read(request.SerializeToString()).text_bytes == 2


@pytest.mark.parametrize("count", [3, -1])
def test_outputs_whose_classes_are_asked_for(count: int) -> None:
    request = message()
    request.outputs.add(name="Y").parameters["classification"].int64_param = count
    request.outputs.add(name="Z").parameters["classification"].int64_param = 0
    assert read(request.SerializeToString()).classified == ("Y",)


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


def test_refuses_a_parameter_of_the_gateways_own_and_passes_others() -> None:
    request = message()
    request.parameters["a"].string_param = "x"
    assert read(request.SerializeToString()).inputs == (Tensor("X", "FP32", (1,)),)
    request.parameters["tidegate-background"].bool_param = True
    with pytest.raises(InvalidRequest, match="gateway's own"):
        read(request.SerializeToString())


@pytest.mark.parametrize(("field", "what"), [(b"\x2a\0", "has 1025 inputs"), (b"\x32\0", "names 1025 outputs")])
def test_refuses_very_many_tensors_before_it_looks_at_each(field: bytes, what: str) -> None:
    with pytest.raises(InvalidRequest, match=what):
        read(field * 1025)


def test_refuses_a_negative_dimension() -> None:
    with pytest.raises(UnparsableRequest, match="-1 is not an unsigned"):
        read(message(shape=(-1,)).SerializeToString())


def test_very_many_huge_dimensions_are_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="20000 dimensions, and 256 may be"):
        read(message(shape=(2**31 - 1,) * 20_000).SerializeToString())


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
