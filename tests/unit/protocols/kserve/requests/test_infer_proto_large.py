"""Messages so large, or of so many parts, that they are outlined before they are parsed."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from control_plane.core.errors import InvalidRequest, PayloadTooLarge
from control_plane.core.infer_call import InferCall
from control_plane.core.tensor import Tensor
from control_plane.protocols.kserve.requests import infer_proto
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.protocols.kserve.requests.infer_proto import infer_request_steps
from control_plane.protocols.kserve.requests.message_outline import outline_steps
from control_plane.protocols.protobuf_fields import varint
from tests.unit.protocols.kserve.infer_messages import LARGE, finished, message, read


def outlined(message: bytes) -> service_pb2.ModelInferRequest:
    """The message, rebuilt from its outline and raw contents."""
    outline, contents = finished(outline_steps(memoryview(message), BodyLimits()))
    request = service_pb2.ModelInferRequest.FromString(outline)
    assert not request.raw_input_contents
    request.raw_input_contents.extend(map(bytes, contents))
    return request


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

    @pytest.mark.parametrize("field", [b"\x78\0", b"\x32\0", b"\x3a\0"], ids=["unknown", "outputs", "contents"])
    def test_so_is_what_has_very_many_fields(self, field: bytes) -> None:
        """Protobuf's parser makes an object of each two bytes, in one step."""
        request = message("UINT8", (LARGE,), [bytes(LARGE)]).SerializeToString()
        assert read(request + b"\x78\0" * 8_000).inputs == (Tensor("X", "UINT8", (LARGE,)),)
        with pytest.raises(PayloadTooLarge, match="more than 8192 inputs, outputs"):
            read(request + field * 8_192)

    def test_data_in_many_inputs_is_data_too(self) -> None:
        request = service_pb2.ModelInferRequest(model_name="m")
        for number in range(40):
            request.inputs.add(name=f"X{number}", datatype="FP32", shape=[10_000]).contents.fp32_contents.extend([1.0] * 10_000)
        assert read(request.SerializeToString()).elements == 400_000

    def test_many_small_contents_are_walked_in_steps(self) -> None:
        request = message(raw=[bytes(LARGE)])
        request.inputs[0].contents.bytes_contents.extend([b"x"] * 50_000)
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
