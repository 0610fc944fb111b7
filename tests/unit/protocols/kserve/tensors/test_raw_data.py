"""Tests of tensors' data in JSON: read as Triton reads it, and written as Triton writes it."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.errors import InvalidRequest
from control_plane.core.tensor import RawTensor, Tensor
from control_plane.protocols.kserve.tensors.raw_data import elements_of_raw, raw_of_elements


def _written(datatype: str, data: bytes, count: int = 1) -> str:
    return elements_of_raw(RawTensor(Tensor("T", datatype, (count,)), data)).decode()


@pytest.mark.parametrize(
    ("datatype", "elements", "data"),
    [
        pytest.param("FP32", [1, 0.5], struct.pack("<ff", 1, 0.5), id="FP32"),
        pytest.param("FP32", [[1.0], [2]], struct.pack("<ff", 1, 2), id="nested"),
        pytest.param("FP64", [0.1], struct.pack("<d", 0.1), id="FP64"),
        pytest.param("INT64", [-(2**63)], struct.pack("<q", -(2**63)), id="INT64"),
        pytest.param("UINT64", [2**64 - 1], b"\xff" * 8, id="UINT64"),
        pytest.param("BOOL", [True, False], b"\1\0", id="BOOL"),
        pytest.param("BYTES", ["é", ""], b"\2\0\0\0\xc3\xa9\0\0\0\0", id="BYTES"),
        pytest.param("INT32", [], b"", id="empty"),
        pytest.param("UINT8", [[1, [2]], 3, [[], [4]]], b"\1\2\3\4", id="ragged"),
        pytest.param("UINT8", json.loads("[" * 900 + "1" + "]" * 900), b"\1", id="deep"),
    ],
)
def test_data_is_read_row_by_row_in_little_endian(datatype: str, elements: list[Any], data: bytes) -> None:
    assert raw_of_elements("X", datatype, elements) == data


@pytest.mark.parametrize(
    ("datatype", "elements", "text"),
    [
        pytest.param("INT8", [128], "beyond INT8", id="too large"),
        pytest.param("UINT8", [-1], "beyond UINT8", id="negative"),
        pytest.param("INT32", [1.0], "not all are of INT32", id="a fraction"),
        pytest.param("FP32", [True], "not all are of FP32", id="a boolean"),
        pytest.param("BOOL", [1], "not all are of BOOL", id="a number"),
        pytest.param("BYTES", [1], "not all are of BYTES", id="no string"),
        pytest.param("FP32", [None], "not all are of FP32", id="null"),
        pytest.param("FP16", [1.0], "has to be sent as binary data", id="FP16"),
    ],
)
def test_data_of_another_type_is_refused(datatype: str, elements: list[Any], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        raw_of_elements("X", datatype, elements)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e16, "10000000000000000.0"), (1e20, "100000000000000000000.0"), (1e21, "1e21"), (1.5e300, "1.5e300"), (0.5, "0.5"),
     (-1e16, "-10000000000000000.0"), (1e-6, "0.000001"), (1.25e-6, "0.00000125"), (1e-7, "1e-7"), (3.0, "3.0"), (-0.0, "-0.0"),
     (5e-324, "5e-324"), (math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")],
)  # fmt: skip
def test_numbers_are_written_as_rapidjson_does(value: float, text: str) -> None:
    assert _written("FP64", struct.pack("<d", value)) == f"[{text}]"


@given(st.lists(st.floats(allow_nan=False, width=32), max_size=20))
def test_numbers_are_read_as_what_was_written(values: list[float]) -> None:
    data = np.array(values, "<f4").tobytes()
    assert raw_of_elements("X", "FP32", json.loads(_written("FP32", data).replace("Infinity", "1e999"))) == data


def test_other_types_are_written_as_json_has_them() -> None:
    assert _written("BOOL", b"\1\0") == "[true,false]"
    assert _written("UINT64", b"\xff" * 8) == "[18446744073709551615]"
    assert _written("BYTES", b'\3\0\0\0a"\n') == '["a\\"\\n"]'


@pytest.mark.parametrize(("datatype", "data"), [("FP16", b"\0\0"), ("BYTES", b"\1\0\0\0\xff")])
def test_what_json_cannot_say_has_to_be_asked_for_as_binary_data(datatype: str, data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="ask for binary data"):
        _written(datatype, data)
