from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TypeVar

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import InvalidRequest, PayloadTooLarge, UnparsableRequest
from control_plane.core.infer_call import InferCall
from control_plane.core.tensor import DATATYPE_BYTES, MAX_ELEMENTS, Tensor
from control_plane.protocols.kserve import infer_proto
from control_plane.protocols.kserve.body_limits import BodyLimits
from control_plane.protocols.kserve.bytes_tensor import encode_bytes_elements
from control_plane.protocols.kserve.infer_proto import infer_request_steps, small_infer_request
from control_plane.protocols.kserve.message_outline import outline_steps
from control_plane.protocols.protobuf_fields import varint
from tests.unit.protocols.kserve.infer_requests import SHAPES

ResultT = TypeVar("ResultT")


LARGE = infer_proto._LARGE_BYTES


def read(message: bytes) -> InferCall:
    return finished(infer_request_steps(message, service_pb2.ModelInferRequest.FromString))


def finished(steps: Steps[ResultT]) -> ResultT:
    """Run `infer_request_steps` to its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: ResultT = end.value
            return result


def outlined(message: bytes) -> service_pb2.ModelInferRequest:
    """The message, rebuilt from its outline and raw contents."""
    outline, contents = finished(outline_steps(memoryview(message), BodyLimits()))
    request = service_pb2.ModelInferRequest.FromString(outline)
    assert not request.raw_input_contents
    request.raw_input_contents.extend(map(bytes, contents))
    return request


def message(datatype: str = "FP32", shape: tuple[int, ...] = (1,), raw: list[bytes] | None = None) -> service_pb2.ModelInferRequest:
    """A request with one input X and these raw contents."""
    request = service_pb2.ModelInferRequest(model_name="m", model_version="3", id="17", raw_input_contents=raw or [])
    request.inputs.add(name="X", datatype=datatype, shape=shape)
    return request


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


def test_refuses_a_negative_dimension() -> None:
    with pytest.raises(UnparsableRequest, match="-1 is not an unsigned"):
        read(message(shape=(-1,)).SerializeToString())


def test_very_many_huge_dimensions_are_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="more elements"):
        read(message(shape=(2**31 - 1,) * 200_000).SerializeToString())


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


class TestLarge:
    """A message so large that it is outlined before it is parsed."""

    def test_is_read_as_a_small_one(self) -> None:
        request = message(shape=(LARGE,), raw=[bytes(4 * LARGE)])
        assert read(request.SerializeToString()) == InferCall("m", "3", "17", (Tensor("X", "FP32", (LARGE,)),), elements=LARGE)

    @pytest.mark.parametrize(
        ("request_", "text"),
        [
            pytest.param(message("FP8", raw=[bytes(LARGE)]), "invalid datatype", id="an unknown datatype"),
            pytest.param(
                message(shape=(LARGE,), raw=[bytes(4 * LARGE + 1)]), f"Expected {4 * LARGE}, got {4 * LARGE + 1}", id="a byte more"
            ),
            pytest.param(message("BYTES", raw=[b"\xff" * LARGE]), "incomplete string data", id="a string beyond the buffer"),
            pytest.param(message(raw=[bytes(LARGE), b""]), "for 1 inputs of model 'm', got 2", id="more contents than inputs"),
        ],
    )
    def test_is_refused_as_a_small_one(self, request_: service_pb2.ModelInferRequest, text: str) -> None:
        with pytest.raises(InvalidRequest, match=text):
            read(request_.SerializeToString())

    def test_its_data_is_never_copied_or_parsed(self) -> None:
        request = message(shape=(LARGE,), raw=[bytes(4 * LARGE)])
        request.inputs[0].contents.fp32_contents.extend([1.0] * LARGE)
        parsed: list[int] = []

        def parse(outline: bytes) -> service_pb2.ModelInferRequest:
            parsed.append(len(outline))
            return service_pb2.ModelInferRequest.FromString(outline)

        finished(infer_request_steps(request.SerializeToString(), parse))
        assert parsed[0] < 100

    def test_too_much_beside_the_data_is_refused(self) -> None:
        request = message()
        request.id = "x" * (infer_proto._MAX_OUTLINE_BYTES + 1)
        with pytest.raises(PayloadTooLarge, match="without its tensors' data"):
            read(request.SerializeToString())

    def test_many_small_contents_are_walked_in_steps(self) -> None:
        request = message(raw=[b"x"] * 50_000)
        steps = outline_steps(memoryview(request.SerializeToString()), BodyLimits())
        assert sum(1 for _ in steps) >= 20

    @pytest.mark.parametrize(
        "ending",
        [
            pytest.param(b"\x3a", id="a tag"),
            pytest.param(b"\x3a\x05ab", id="fewer bytes than told"),
            pytest.param(b"\x0b", id="a group"),
            pytest.param(b"\x0f", id="a wire type that is none"),
            pytest.param(b"\x09" + bytes(7), id="half a fixed64"),
            pytest.param(b"\x0d" + bytes(3), id="half a fixed32"),
            pytest.param(b"\x08" + b"\xff" * 11, id="a number without end"),
        ],
    )
    def test_a_message_that_is_none(self, ending: bytes) -> None:
        with pytest.raises(InvalidRequest, match=r"not a (ModelInferRequest|protobuf message)"):
            read(message(raw=[bytes(LARGE)]).SerializeToString() + ending)

    @given(data=st.data())
    def test_outline_and_contents_are_what_protobuf_reads(self, data: st.DataObject) -> None:
        request = data.draw(_REQUESTS)
        if data.draw(st.booleans()):
            entry = request.inputs.add(name="large", datatype="FP32", shape=[9])
            entry.contents.fp32_contents.extend([1.0] * (LARGE // 4 + 1))
        whole = request.SerializeToString()
        unknown = data.draw(st.sampled_from([b"", b"\xf8\x07\x05", b"\xfa\x07\x02ab", b"\xf9\x07" + bytes(8), b"\xfd\x07" + bytes(4)]))
        expected = service_pb2.ModelInferRequest.FromString(whole + unknown)
        for entry in expected.inputs:
            if len(entry.SerializeToString()) > LARGE:
                entry.ClearField("contents")
        assert outlined(whole + unknown) == expected

    @given(fields=st.lists(st.tuples(st.integers(0, 1 << 64), st.binary(max_size=20)), max_size=6))
    def test_any_fields_are_walked_as_protobuf_walks_them_or_refused(self, fields: list[tuple[int, bytes]]) -> None:
        raw = b"".join(varint(tag) + content for tag, content in fields)
        try:
            expected = service_pb2.ModelInferRequest.FromString(raw)
            seen = outlined(raw)
        except (DecodeError, InvalidRequest):
            return
        assert seen == expected


_REQUESTS = st.builds(
    service_pb2.ModelInferRequest,
    model_name=st.text(max_size=5),
    id=st.text(max_size=5),
    raw_input_contents=st.lists(st.binary(max_size=50), max_size=4),
    inputs=st.lists(
        st.builds(
            service_pb2.ModelInferRequest.InferInputTensor,
            name=st.text(max_size=4),
            datatype=st.sampled_from(["FP32", "BYTES"]),
            shape=st.lists(st.integers(-5, 1 << 40), max_size=4),
        ),
        max_size=3,
    ),
    parameters=st.dictionaries(st.text(max_size=4), st.builds(service_pb2.InferParameter, int64_param=st.integers(0, 9)), max_size=3),
)


def contents(field: str, values: list[object]) -> bytes:
    request = message()
    getattr(request.inputs[0].contents, field).extend(values)
    return request.SerializeToString()


class TestCounts:
    """Two bytes on the wire can become an object of fifty in a parser."""

    @pytest.mark.parametrize(
        "whole",
        [
            pytest.param(b"\x08\x01" * LARGE, id="unknown fields"),
            pytest.param(b"\x32\x00" * LARGE, id="outputs"),
            pytest.param(b"\x3a\x00" * LARGE, id="raw contents"),
            pytest.param(contents("bytes_contents", [b""] * LARGE), id="texts"),
            pytest.param(b"\x2a" + varint(2 * LARGE) + b"\x10\x01" * LARGE, id="fields of an input"),
        ],
    )
    def test_of_fields_there_is_a_limit(self, whole: bytes) -> None:
        steps = infer_request_steps(whole, _never, BodyLimits(max_fields=5000))
        for _ in range(4):
            next(steps)  # in steps, and no further than the limit
        with pytest.raises(PayloadTooLarge, match=r"more than 5000 fields.*TIDEGATE_MAX_MESSAGE_FIELDS.*raw_input_contents"):
            finished(steps)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("int_contents", -1),
            ("int64_contents", 2**40),
            ("uint_contents", 300),
            ("bool_contents", True),
            ("fp32_contents", 1.5),
            ("fp64_contents", 1.5),
        ],
    )
    def test_of_elements_written_out_singly(self, field: str, value: object) -> None:
        whole = contents(field, [value] * 70_000)
        assert finished(infer_request_steps(whole, service_pb2.ModelInferRequest.FromString, BodyLimits(max_elements=70_000)))
        with pytest.raises(PayloadTooLarge, match=r"more than 69999 elements.*TIDEGATE_MAX_ELEMENTS.*raw_input_contents"):
            finished(infer_request_steps(whole, _never, BodyLimits(max_elements=69_999)))

    def test_raw_contents_are_bytes_and_count_once(self) -> None:
        limits = BodyLimits(max_elements=1, max_fields=10)
        whole = message(shape=(LARGE,), raw=[bytes(4 * LARGE)]).SerializeToString()
        assert finished(infer_request_steps(whole, service_pb2.ModelInferRequest.FromString, limits)).elements == LARGE


def _never(outline: bytes) -> service_pb2.ModelInferRequest:
    raise AssertionError("parsed what was to be refused")
