"""Inference requests in JSON with many elements: counted, bounded and held against their shape before Triton parses them."""

from __future__ import annotations

from math import prod

import pytest

from control_plane.core.algorithms.steps import finish
from control_plane.core.errors import InvalidRequest, PayloadTooLarge
from control_plane.core.infer_call import InferCall
from control_plane.core.tensor import Tensor
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.protocols.kserve.requests.infer_json import infer_request_steps
from tests.unit.protocols.kserve.requests.infer_json_bench import binary, read

ONES = "[" + ",".join(["1"] * 300_000) + "]"
ROWS = "[" + ",".join(["[1,2,3]"] * 100_000) + "]"
TEXTS = "[" + ",".join(['"a,[b","c\\",d"'] * 50_000) + "]"


class TestElements:
    """Elements in JSON are counted before Triton allocates an object for each."""

    @pytest.mark.parametrize(
        ("shape", "datatype", "data"),
        [
            pytest.param([2, 2], "FP32", "[[1,2],[3,4]]", id="nested"),
            pytest.param([2, 2], "FP32", "[1,2,3,4]", id="flat"),
            pytest.param([3], "FP32", "[[1,2],3]", id="ragged, which Triton takes"),
            pytest.param([2, 1, 1], "BYTES", '[[["a"]],[["b"]]]', id="texts"),
            pytest.param([], "FP32", "[1]", id="a scalar"),
            pytest.param([0, 3], "FP32", "[1]", id="an empty one: Triton does not look"),
            pytest.param([300_000], "FP32", ONES, id="large"),
            pytest.param([100_000, 3], "FP32", ROWS, id="large and nested"),
            pytest.param([100_000], "BYTES", TEXTS, id="large, of texts with commas and brackets"),
            pytest.param([300_001], "FP32", "[1,[" + ONES + ",[]]]", id="large and ragged"),
        ],
    )
    def test_as_many_as_the_shape_says(self, shape: list[int], datatype: str, data: str) -> None:
        assert read(with_data(shape, datatype, data)).inputs == (Tensor("X", datatype, tuple(shape)),)

    @pytest.mark.parametrize(
        ("shape", "datatype", "data", "found"),
        [
            pytest.param([10**6], "FP32", "[1]", 1, id="a million announced, one sent"),
            pytest.param([10**6], "BYTES", '["a"]', 1, id="and of BYTES"),
            pytest.param([1], "FP32", "[1,2]", 2, id="one more"),
            pytest.param([3], "FP32", "[]", 0, id="none"),
            pytest.param([2, 2], "FP32", "[[1,2],[3]]", 3, id="nested, one missing"),
            pytest.param([1], "FP32", "[" * 900 + "]" * 900, 0, id="nothing but nesting"),
            pytest.param([299_999], "FP32", ONES, 300_000, id="large, one more"),
            pytest.param([300_000_000], "FP32", ONES, 300_000, id="large, far too few"),
            pytest.param([300_001], "FP32", ROWS, 300_000, id="large and nested, one missing"),
            pytest.param([100_001], "BYTES", TEXTS, 100_000, id="large, of texts"),
        ],
    )
    def test_more_or_fewer_are_refused_with_what_would_be_right(self, shape: list[int], datatype: str, data: str, found: int) -> None:
        with pytest.raises(InvalidRequest, match=rf"does not match true shape.*input 'X' .*takes {prod(shape)} elements, got {found}$"):
            read(with_data(shape, datatype, data))

    @pytest.mark.parametrize("data", [ONES, ROWS, "[" + ",".join(["0"] * 1001) + "]"], ids=["large", "nested", "small"])
    def test_there_is_a_limit(self, data: str) -> None:
        with pytest.raises(PayloadTooLarge, match=r"more than 1000 elements.*TIDEGATE_MAX_ELEMENTS.*as binary data"):
            read_within(BodyLimits(max_elements=1000), with_data([300_000], "FP32", data))
        assert read_within(BodyLimits(max_elements=1000), with_data([990], "FP32", "[" + ",".join(["0"] * 990) + "]"))

    def test_there_is_a_limit_of_json_apart_from_binary_data(self) -> None:
        limits = BodyLimits(max_json_bytes=2000)
        with pytest.raises(PayloadTooLarge, match=r"at most 2000 .*TIDEGATE_MAX_JSON_BYTES.*as binary data"):
            read_within(limits, with_data([2000], "FP32", "[" + "1," * 1999 + "1]"))
        body, length = binary("FP32", [10_000], 40_000, bytes(40_000))
        assert read_within(limits, body, length).inputs


def with_data(shape: list[int], datatype: str, data: str) -> bytes:
    return f'{{"inputs":[{{"name":"X","shape":{shape},"datatype":"{datatype}","data":{data}}}]}}'.encode()


def read_within(limits: BodyLimits, body: bytes, header_length: bytes | None = None) -> InferCall:
    return finish(infer_request_steps(body, header_length, model_name="m", model_version="", limits=limits))
