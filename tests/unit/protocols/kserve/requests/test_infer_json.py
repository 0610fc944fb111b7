"""A table of single mistakes: every refusal, with its class and text."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from control_plane.core.errors import InvalidRequest, PayloadTooLarge, UnparsableRequest
from control_plane.core.infer_call import InferCall
from control_plane.core.tensor import MAX_ELEMENTS, Tensor, element_count
from tests.unit.protocols.kserve.requests.infer_json_bench import binary, read

FP32 = {"name": "X", "datatype": "FP32", "shape": [1], "data": [1.0]}


_X = {"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}


def with_input(**changes: object) -> bytes:
    """One `FP32` input with these fields changed; None removes a field."""
    entry = {name: value for name, value in (FP32 | changes).items() if value is not None}
    return json.dumps({"inputs": [entry]}).encode()


@pytest.mark.parametrize(
    ("body", "tensors"),
    [
        pytest.param(with_input(), (Tensor("X", "FP32", (1,)),), id="json data"),
        pytest.param(b'{"inputs":[]}', (), id="no inputs: Triton says which it misses"),
        pytest.param(with_input(shape=[]), (Tensor("X", "FP32", ()),), id="a scalar"),
        pytest.param(with_input(shape=[0], data=[]), (Tensor("X", "FP32", (0,)),), id="an empty tensor"),
        pytest.param(with_input(shape=[1, 0], data=[]), (Tensor("X", "FP32", (1, 0)),), id="a batch of empty tensors"),
        pytest.param(with_input(shape=[2**20, 2**20], data=None), (Tensor("X", "FP32", (2**20, 2**20)),), id="as many elements as may be"),
        pytest.param(with_input(shape=[2**31 - 1], data=None), (Tensor("X", "FP32", (2**31 - 1,)),), id="the largest dimension"),
        pytest.param(with_input(shape=[0, 3], data=[]), (Tensor("X", "FP32", (0, 3)),), id="an empty batch"),
        pytest.param(with_input(data=None), (Tensor("X", "FP32", (1,)),), id="no data: Triton's to refuse"),
        pytest.param(with_input(name=""), (Tensor("", "FP32", (1,)),), id="an empty name"),
        pytest.param(with_input(parameters={}), (Tensor("X", "FP32", (1,)),), id="empty parameters"),
        pytest.param(with_input(shape=[2, 2], data=[[1, 2], [3, 4]]), (Tensor("X", "FP32", (2, 2)),), id="nested data"),
        pytest.param(with_input(data=[float("nan")]), (Tensor("X", "FP32", (1,)),), id="a bare NaN, as Triton writes it itself"),
        pytest.param(with_input(data=[float("-inf")]), (Tensor("X", "FP32", (1,)),), id="a bare -Infinity"),
        pytest.param(b"\xef\xbb\xbf" + with_input(), (Tensor("X", "FP32", (1,)),), id="a byte order mark"),
        pytest.param(with_input(datatype="BYTES", data=["a:b:c"]), (Tensor("X", "BYTES", (1,)),), id="colons within a string"),
        pytest.param(with_input(datatype="BYTES", data=['{"a":1,"a":2}']), (Tensor("X", "BYTES", (1,)),), id="json within a string"),
        pytest.param(with_input(datatype="BYTES", data=["\U0001f600"]), (Tensor("X", "BYTES", (1,)),), id="a surrogate pair"),
        pytest.param(with_input(name="a\x00b"), (Tensor("a\x00b", "FP32", (1,)),), id="an escaped NUL"),
        pytest.param(b" \r\n\t" + with_input() + b"\n", (Tensor("X", "FP32", (1,)),), id="white space around"),
    ],
)
def test_accepts(body: bytes, tensors: tuple[Tensor, ...]) -> None:
    assert replace(read(body), text_bytes=0) == InferCall(
        "m", "3", "", tensors, elements=sum(element_count(tensor.shape) for tensor in tensors)
    )


@pytest.mark.parametrize(
    ("data", "text_bytes"),
    [
        pytest.param(["ab", "c"], 3, id="flat"),
        pytest.param([["ab"], ["c"]], 3, id="an array for each row"),
        pytest.param(["\u00fc\U0001f600"], 6, id="bytes, not characters"),
        pytest.param([], 0, id="none"),
        pytest.param([[["ab"]]], None, id="nested deeper: all of the JSON"),
        pytest.param("ab", None, id="no array: all of the JSON"),
        pytest.param(["a" * 300_000], None, id="large: all of the JSON"),
    ],
)
def test_tells_how_long_texts_are(data: object, text_bytes: int | None) -> None:
    shape = [len(data)] if isinstance(data, list) else [1]
    body = with_input(datatype="BYTES", data=data, shape=shape)
    assert read(body).text_bytes == (len(body) if text_bytes is None else text_bytes)


def test_binary_texts_count_without_their_framing() -> None:
    body, header_length = binary("BYTES", [2], 4 + 3 + 4, b"\x03\0\0\0abc\0\0\0\0")
    assert read(body, header_length).text_bytes == 3
    assert read(with_input()).text_bytes == 0


def test_tells_the_id() -> None:
    assert read(b'{"id":"17","inputs":[]}').request_id == "17"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(b"{", "failed to parse", id="cut off"),
        pytest.param(b"{}x", "failed to parse", id="more after it"),
        pytest.param(b"\x00", "failed to parse", id="a NUL byte"),
        pytest.param(b'{"inputs":[]}\x00', "failed to parse", id="a NUL byte after it, where Triton stops reading"),
        pytest.param(b'{"inputs":[]}'.replace(b"[", b"\x00["), "failed to parse", id="a NUL byte within"),
        pytest.param(with_input().decode().encode("utf-16"), "failed to parse", id="UTF-16 with its mark"),
        pytest.param(with_input().decode().encode("utf-16-le"), "failed to parse", id="UTF-16 without"),
        pytest.param(with_input().decode().encode("utf-32"), "failed to parse", id="UTF-32"),
        pytest.param(b'{"inputs":[],"x":"\xff"}', "failed to parse", id="not UTF-8"),
        pytest.param(b'{"inputs":[],"x":"\xed\xa0\x80"}', "failed to parse", id="an encoded surrogate"),
        pytest.param(b'{"inputs":[],"x":"\\ud800"}', "failed to parse", id="half a surrogate pair"),
        pytest.param(b'{"inputs":[],"x":"\\udc00"}', "failed to parse", id="the other half"),
        pytest.param(b'{"inputs":[],"\\ud800":1}', "failed to parse", id="half a pair in a key"),
        pytest.param(b'{"inputs":[],"x":"\n"}', "failed to parse", id="a raw control character"),
        pytest.param(b"{'inputs':[]}", "failed to parse", id="single quotes"),
        pytest.param(b'{"inputs":[],}', "failed to parse", id="a trailing comma"),
        pytest.param(b'{"inputs":[]/**/}', "failed to parse", id="a comment"),
        pytest.param(b'{"inputs":[01]}', "failed to parse", id="a leading zero"),
        pytest.param(b'{"inputs":[Inf]}', "failed to parse", id="Inf, which only Triton reads"),
        pytest.param(b'{"inputs":[],"x":' + b"9" * 5000 + b"}", "", id="an integer of 5000 digits"),
        pytest.param(b"[]", "JSON object", id="an array"),
        pytest.param(b"null", "JSON object", id="null"),
        pytest.param(b'"inputs"', "JSON object", id="a string"),
        pytest.param(b"{}", "non-existing object member 'inputs'", id="no inputs"),
        pytest.param(b'{"inputs":null}', "non-array", id="inputs null"),
        pytest.param(b'{"inputs":{}}', "non-array", id="inputs an object"),
        pytest.param(b'{"inputs":[],"id":null}', "'id'", id="id null"),
        pytest.param(b'{"inputs":[],"id":7}', "'id'", id="id a number"),
        pytest.param(b'{"inputs":[7]}', "must be an object", id="an input a number"),
        pytest.param(b'{"inputs":[null]}', "must be an object", id="an input null"),
        pytest.param(b'{"inputs":[[]]}', "must be an object", id="an input an array"),
        pytest.param(with_input(name=None), "non-existing object member 'name'", id="no name"),
        pytest.param(with_input(datatype=None), "non-existing object member 'datatype'", id="no datatype"),
        pytest.param(with_input(shape=None), "non-existing object member 'shape'", id="no shape"),
        pytest.param(with_input().replace(b'"X"', b"null"), "'name'", id="name null"),
        pytest.param(with_input().replace(b'"FP32"', b"null"), "'datatype'", id="datatype null"),
        pytest.param(with_input().replace(b'"FP32"', b'["FP32"]'), "'datatype'", id="datatype an array"),
        pytest.param(with_input().replace(b'"shape": [1]', b'"shape": null'), "'shape'", id="shape null"),
        pytest.param(with_input(shape={"0": 1}), "'shape'", id="shape an object"),
        pytest.param(with_input(shape=[-1]), "unsigned", id="a negative dimension"),
        pytest.param(with_input(shape=[1.0]), "unsigned", id="a dimension with a point"),
        pytest.param(with_input(shape=[True]), "unsigned", id="a dimension that is true"),
        pytest.param(with_input(shape=["1"]), "unsigned", id="a dimension in quotes"),
        pytest.param(with_input(shape=[[1]]), "unsigned", id="a nested shape"),
        pytest.param(with_input(shape=[None]), "unsigned", id="a dimension null"),
        pytest.param(with_input(shape=[2**64]), "unsigned", id="a dimension beyond 64 bits"),
        pytest.param(with_input(parameters=[]), "'parameters'", id="parameters an array"),
        pytest.param(with_input(parameters={"binary_data_size": None}), "binary_data_size", id="binary_data_size null"),
        pytest.param(with_input(parameters={"binary_data_size": True}), "binary_data_size", id="binary_data_size true"),
        pytest.param(with_input(parameters={"binary_data_size": 4.0}), "binary_data_size", id="binary_data_size with a point"),
        pytest.param(with_input(parameters={"binary_data_size": -4}), "binary_data_size", id="binary_data_size negative"),
        pytest.param(with_input(parameters={"binary_data_size": "4"}), "binary_data_size", id="binary_data_size in quotes"),
    ],
)
def test_refuses_as_unparsable(body: bytes, text: str) -> None:
    with pytest.raises(UnparsableRequest) as caught:
        read(body)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"inputs":[],"inputs":[]}', id="at the top"),
        pytest.param(b'{"inputs":[],"input\\u0073":[]}', id="once escaped"),
        pytest.param(b'{"inputs":[],"id":"a","id":"a"}', id="with equal values"),
        pytest.param(b'{"inputs":[],"id":"\\u003a","id":"a"}', id="beside an escaped colon"),
        pytest.param(with_input().replace(b'"shape"', b'"shape": [9], "shape"'), id="in an input"),
        pytest.param(with_input().replace(b'"shape"', b'"sh\\u0061pe": [9], "shape"'), id="in an input, escaped"),
        pytest.param(with_input(parameters={"a": {"b": 1}}).replace(b'"b"', b'"b": 2, "b"'), id="in a nested object"),
        pytest.param(with_input(data=[1, {"b": 1}]).replace(b'"b"', b'"b": 2, "b"'), id="behind a number in an array"),
        pytest.param(with_input(data=[[1, {"b": 1}]]).replace(b'"b"', b'"b": 2, "b"'), id="behind a number in an array in an array"),
        pytest.param(with_input(data=[[], [{"b": 1}]]).replace(b'"b"', b'"b": 2, "b"'), id="behind an empty array"),
        pytest.param(with_input(data=["::::", {"b": 1}]).replace(b'"b"', b'"b": 2, "b"'), id="among colons in strings"),
        pytest.param(b'{"inputs":[],"":1,"":2}', id="empty keys"),
        pytest.param(b'{"inputs":[NaN],"a":1,"a":2}', id="where only the slower parser reads"),
    ],
)
def test_refuses_a_repeated_key(body: bytes) -> None:
    with pytest.raises(UnparsableRequest, match="occurs twice"):
        read(body)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(with_input(datatype="FP8"), "invalid datatype", id="an unknown datatype"),
        pytest.param(with_input(datatype="fp32"), "invalid datatype", id="a datatype in lower case"),
        pytest.param(with_input(shape=[MAX_ELEMENTS + 1]), "more elements", id="one dimension beyond the limit"),
        pytest.param(with_input(shape=[2**32, 2**31]), "more elements", id="a product of 2**63"),
        pytest.param(with_input(shape=[2**33, 2**31]), "more elements", id="a product of 2**64, which wraps to 0"),
        pytest.param(with_input(shape=[2**32] * 4), "more elements", id="a product of 2**128"),
        pytest.param(with_input(shape=[2**31]), "more elements", id="a dimension beyond Triton's 32 bits"),
        pytest.param(with_input(shape=[2**32, 0]), "more elements", id="a batch that Triton takes for an empty one"),
        pytest.param(with_input(shape=[0, 0], data=[]), "Triton never answers", id="an empty batch of empty elements"),
        pytest.param(with_input(shape=[0, 3, 0], data=[]), "Triton never answers", id="and of more dimensions"),
        pytest.param(with_input(shape=[1] * 257), "257 dimensions", id="more dimensions than any tensor has"),
        pytest.param(b'{"inputs":[' + b",".join([json.dumps(_X).encode()] * 1025) + b"]}", "has 1025 inputs", id="very many inputs"),
        pytest.param(with_input().replace(b"{", b'{"outputs":[' + b",".join([b"{}"] * 1025) + b"],", 1), "1025 outputs", id="or outputs"),
        pytest.param(with_input(shape=[2**63 - 1]), "more elements", id="the largest signed dimension"),
        pytest.param(with_input(shape=[2**64 - 1]), "more elements", id="the largest unsigned dimension"),
        pytest.param(with_input(shape=[2**32, 2**32, 0]), "more elements", id="an overflow before an empty dimension"),
        pytest.param(with_input(shape=[0, 2**32, 2**32]), "more elements", id="an overflow behind an empty dimension"),
        pytest.param(b'{"inputs":[],"parameters":{"a":1,"tidegate-background":"x"}}', "gateway's own", id="a parameter of the gateway's"),
        pytest.param(b'{"inputs":[],"parameters":{"\\u0074idegate-x":1}}', "gateway's own", id="one that is spelt otherwise"),
    ],
)
def test_refuses_as_invalid(body: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        read(body)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'], ids=["arrays", "objects"])
@pytest.mark.parametrize("depth", [450, 990, 1010, 1023, 1025, 100_000])
def test_depth_never_ends_in_anything_but_an_answer(opening: bytes, depth: int) -> None:
    closing = {b"[": b"]", b'{"a":': b"}"}[opening]
    body = b'{"inputs":[],"x":' + opening * depth + b"1" + closing * depth + b"}"
    try:
        read(body)
    except (UnparsableRequest, PayloadTooLarge) as exc:
        assert any(text in str(exc) for text in ("recursion", "nested too deep", "without its data"))  # noqa: PT017 - near the limit
    else:
        assert depth < 1025


def test_a_shape_of_thousands_of_huge_dimensions_is_refused_at_once() -> None:
    body = with_input(shape=[2**31 - 1] * 20_000)
    started_s = time.process_time()
    with pytest.raises(InvalidRequest, match="20000 dimensions, and 256 may be"):
        read(body)
    assert time.process_time() - started_s < 1.0


class TestHeaderLength:
    """`Inference-Header-Content-Length`."""

    @pytest.mark.parametrize(
        "header_length",
        [
            pytest.param(b"14", id="beyond the body"),
            pytest.param(b"", id="empty"),
            pytest.param(b"-1", id="negative"),
            pytest.param(b"+1", id="signed"),
            pytest.param(b"1.0", id="with a point"),
            pytest.param(b"0x1", id="hexadecimal"),
            pytest.param(b"1 1", id="two numbers"),
            pytest.param(b"1,1", id="a list"),
            pytest.param(b" 1", id="a space before"),
            pytest.param(b"1_0", id="an underscore"),
            pytest.param("\u0661".encode(), id="an Arabic digit"),
            pytest.param(b"\xb2", id="a superscript two in latin-1"),
            pytest.param(b"18446744073709551629", id="13 after wrapping at 2**64"),
            pytest.param(b"9" * 5000, id="more digits than Python converts"),
            pytest.param(b"0" * 5000, id="as many zeros"),
        ],
    )
    def test_refuses(self, header_length: bytes) -> None:
        with pytest.raises(InvalidRequest, match="header size should be in range"):
            read(b'{"inputs":[]}', header_length)

    def test_splits_json_and_binary(self) -> None:
        body, header_length = binary("INT16", [2], 4, b"\x01\x02\x03\x04")
        assert read(body, header_length).inputs == (Tensor("X", "INT16", (2,)),)

    def test_may_be_the_whole_body(self) -> None:
        assert read(b'{"inputs":[]}', b"13").inputs == ()

    def test_may_have_leading_zeros(self) -> None:
        assert read(b'{"inputs":[]}', b"0013").inputs == ()

    def test_one_too_small_cuts_the_json(self) -> None:
        with pytest.raises(UnparsableRequest):
            read(b'{"inputs":[]}', b"12")

    @pytest.mark.parametrize(("body", "header_length"), [(b"\x00\x01", b"0"), (b"", b"0"), (b"", None), (b'{"inputs":1}', b"0")])
    def test_zero_announces_a_raw_binary_request(self, body: bytes, header_length: bytes | None) -> None:
        assert read(body, header_length) == InferCall("m", "3", "", (), text_bytes=len(body))


class TestBinaryData:
    @pytest.mark.parametrize(
        ("datatype", "shape", "size", "content", "text"),
        [
            pytest.param("FP32", [1], 4, b"\0\0\0", "expecting 1 additional bytes", id="less than announced"),
            pytest.param("FP32", [1], 4, b"\0\0\0\0\0", "unexpected additional input data", id="more than announced"),
            pytest.param("FP32", [1], 3, b"\0\0\0", "Expected 4, got 3", id="less than the shape needs"),
            pytest.param("FP32", [1], 5, b"\0\0\0\0\0", "Expected 4, got 5", id="more than the shape needs"),
            pytest.param("FP32", [0], 4, b"\0\0\0\0", "Expected 0, got 4", id="data for an empty tensor"),
            pytest.param("FP64", [2**20, 2**20], 0, b"", "Expected 8796093022208, got 0", id="a huge shape with no data"),
            pytest.param("FP32", [1], 2**64 - 4, b"", "additional bytes", id="a size that wraps to -4"),
            pytest.param("BYTES", [1], 4, b"\xff\xff\xff\xff", "incomplete string data", id="a length beyond the buffer"),
            pytest.param("BYTES", [1], 3, b"\0\0\0", "incomplete string length", id="a length cut off"),
            pytest.param("BYTES", [2], 4, b"\0\0\0\0", "expected 2 string elements", id="fewer elements than the shape"),
            pytest.param("BYTES", [1], 8, b"\0" * 8, "expected 1 string elements", id="more elements than the shape"),
        ],
    )
    def test_refuses(self, datatype: str, shape: list[int], size: int, content: bytes, text: str) -> None:
        body, header_length = binary(datatype, shape, size, content)
        with pytest.raises(InvalidRequest, match=text):
            read(body, header_length)

    @pytest.mark.parametrize("padding", [0, 5000], ids=["a short header", "a long header"])
    def test_a_header_that_came_before_is_held_against_each_body_anew(self, padding: int) -> None:
        entry = {"name": "X", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5, "x": "x" * padding}}
        text = json.dumps({"inputs": [entry], "id": "7"}).encode()
        header_length = b"%d" % len(text)
        good = read(text + b"\x01\0\0\0a", header_length)
        for content in (b"\x02\0\0\0a", b"\x01\0\0\0", b"\x01\0\0\0ab"):
            with pytest.raises(InvalidRequest):
                read(text + content, header_length)
        assert (
            read(text + b"\x01\0\0\0b", header_length)
            == good
            == InferCall("m", "3", "7", (Tensor("X", "BYTES", (1,)),), text_bytes=1, elements=1)
        )

    def test_a_header_that_was_refused_is_refused_again(self) -> None:
        body, header_length = binary("FP8", [1], 1, b"a")
        for _ in range(3):
            with pytest.raises(InvalidRequest, match="invalid datatype"):
                read(body, header_length)

    def test_data_after_an_all_json_request_is_refused(self) -> None:
        text = with_input()
        with pytest.raises(InvalidRequest, match="unexpected additional input data"):
            read(text + b"x", b"%d" % len(text))

    def test_each_input_takes_its_own_part_in_order(self) -> None:
        entries = [
            {"name": "A", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}},
            FP32,
            {"name": "B", "datatype": "INT8", "shape": [2], "parameters": {"binary_data_size": 2}},
        ]
        text = json.dumps({"inputs": entries}).encode()
        assert [t.name for t in read(text + b"\x01\0\0\0a" + b"bb", b"%d" % len(text)).inputs] == ["A", "X", "B"]
        with pytest.raises(InvalidRequest):  # the same bytes in the other order frame no string
            read(text + b"bb" + b"\x01\0\0\0a", b"%d" % len(text))


class TestSharedMemory:
    REGION = {"parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4}}
    """Shared memory parameters, of an input that then has no data."""

    @pytest.mark.parametrize(
        ("request_", "uses_it"),
        [
            pytest.param({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], **REGION}]}, True, id="an input"),
            pytest.param({"inputs": [_X], "outputs": [{"name": "Y"}, {"name": "Z", **REGION}]}, True, id="an output"),
            pytest.param({"inputs": [_X], "outputs": [{"name": "Y"}]}, False, id="none"),
            pytest.param({"inputs": [_X], "parameters": REGION["parameters"]}, False, id="a parameter of the request is no tensor's"),
            pytest.param({"inputs": [_X], "outputs": {"parameters": REGION}}, False, id="outputs of a kind that Triton refuses"),
            pytest.param({"inputs": [_X], "outputs": [7, [], None, {"parameters": 7}]}, False, id="outputs of all kinds"),
        ],
    )
    def test_is_found(self, request_: dict[str, Any], uses_it: bool) -> None:
        assert read(json.dumps(request_).encode()).uses_shared_memory is uses_it

    def test_is_found_however_its_name_is_written(self) -> None:
        body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], **self.REGION}]}).encode()
        assert read(body.replace(b"shared_", b"\\u0073hared_")).uses_shared_memory


@pytest.mark.parametrize(
    ("outputs", "classified"),
    [
        pytest.param([{"name": "Y"}, {"name": "Z", "parameters": {"classification": 3}}], ("Z",), id="one"),
        pytest.param([{"name": "Y", "parameters": {"classification": -1}}], ("Y",), id="a number that Triton may take or refuse"),
        pytest.param([{"name": "Y", "parameters": {"classification": 0}}], (), id="none"),
        pytest.param([{"parameters": {"classification": 1}}, 7, {"name": "Y", "parameters": 7}], ("None",), id="without a name"),
    ],
)
def test_outputs_whose_classes_are_asked_for(outputs: list[Any], classified: tuple[str, ...]) -> None:
    assert read(json.dumps({"inputs": [_X], "outputs": outputs}).encode()).classified == classified


def test_an_output_whose_name_is_too_long_to_be_read_is_not_overlooked() -> None:
    large = {"name": "X", "datatype": "FP32", "shape": [150_000], "data": [0.0] * 150_000}
    outputs = [{"name": "OUT\0" + 1100 * "a", "parameters": {"classification": 1}}]
    assert len(read(json.dumps({"inputs": [large], "outputs": outputs}).encode()).classified) == 1


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        pytest.param({"sequence_id": 7, "sequence_start": True}, ("7", False, True, False), id="number"),
        pytest.param({"sequence_id": "7", "sequence_end": True}, ("7", True, False, True), id="text"),
        pytest.param({"sequence_id": 0}, ("", False, False, False), id="no sequence by a number"),
        pytest.param({"sequence_id": "", "sequence_start": True}, ("", False, True, False), id="no sequence by a text"),
        pytest.param([7], ("", False, False, False), id="parameters of a kind that Triton refuses"),
    ],
)
def test_the_sequence_of_a_request(parameters: Any, told: tuple[str, bool, bool, bool]) -> None:
    call = read(json.dumps({"inputs": [_X], "parameters": parameters}).encode())
    assert (call.sequence_id, call.sequence_is_text, call.starts_sequence, call.ends_sequence) == told


def test_a_sequence_whose_id_is_too_long_to_be_read_is_not_overlooked() -> None:
    large = {"name": "X", "datatype": "FP32", "shape": [150_000], "data": [0.0] * 150_000}
    with pytest.raises(InvalidRequest, match="sequence_id"):
        read(json.dumps({"inputs": [large], "parameters": {"sequence_id": "a\0" + 1100 * "b"}}).encode())
