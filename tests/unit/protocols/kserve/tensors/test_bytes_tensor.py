from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.algorithms.steps import finish
from control_plane.core.errors import InvalidRequest
from control_plane.core.tensor import Tensor
from control_plane.protocols.kserve.tensors.bytes_tensor import bytes_tensor_steps, encode_bytes_elements

ELEMENTS = st.lists(st.binary(max_size=12), max_size=6)


def check(count: int, data: bytes, *, start: int = 0, end: int | None = None) -> None:
    finish(bytes_tensor_steps(Tensor("X", "BYTES", (count,)), data, start=start, end=len(data) if end is None else end))


def naive_elements(data: bytes) -> list[bytes] | None:
    """The elements as a simple copying reader finds them; None if it runs out of bytes."""
    found = []
    while data:
        if len(data) < 4:
            return None
        (length,) = struct.unpack("<I", data[:4])
        if len(data) < 4 + length:
            return None
        found.append(data[4 : 4 + length])
        data = data[4 + length :]
    return found


@given(elements=ELEMENTS)
def test_what_is_encoded_is_accepted_with_its_count_and_no_other(elements: list[bytes]) -> None:
    data = encode_bytes_elements(elements)
    assert naive_elements(data) == elements
    check(len(elements), data)
    for wrong in {len(elements) + 1, len(elements) - 1} - {-1}:
        with pytest.raises(InvalidRequest, match="string elements"):
            check(wrong, data)


@given(data=st.one_of(st.binary(max_size=24), ELEMENTS.map(encode_bytes_elements)), count=st.integers(0, 6))
def test_any_bytes_are_judged_as_by_the_naive_reader(data: bytes, count: int) -> None:
    elements = naive_elements(data)
    if elements is not None and len(elements) == count:
        check(count, data)
    else:
        with pytest.raises(InvalidRequest):
            check(count, data)


@given(elements=ELEMENTS.filter(bool), data=st.data())
def test_a_changed_length_is_refused_unless_the_bytes_still_are_as_many_elements(elements: list[bytes], data: st.DataObject) -> None:
    encoded = bytearray(encode_bytes_elements(elements))
    index = data.draw(st.integers(0, len(elements) - 1))
    at = sum(4 + len(element) for element in elements[:index])
    encoded[at : at + 4] = struct.pack("<I", data.draw(st.integers(0, 2**32 - 1).filter(lambda n: n != len(elements[index]))))
    still = naive_elements(bytes(encoded))
    if still is None or len(still) != len(elements):
        with pytest.raises(InvalidRequest):
            check(len(elements), bytes(encoded))
    if index == len(elements) - 1:  # nothing behind it can make up for a wrong length
        assert still is None or len(still) != len(elements)


@given(elements=ELEMENTS, before=st.binary(max_size=8), after=st.binary(max_size=8))
def test_reads_only_its_part_of_the_body(elements: list[bytes], before: bytes, after: bytes) -> None:
    encoded = encode_bytes_elements(elements)
    check(len(elements), before + encoded + after, start=len(before), end=len(before) + len(encoded))


def test_a_length_within_the_body_but_beyond_its_own_part_is_refused() -> None:
    body = struct.pack("<I", 8) + b"abcd" + b"next"
    with pytest.raises(InvalidRequest, match="only 4 bytes available"):
        check(1, body, end=8)


def test_a_length_is_little_endian() -> None:
    check(1, b"\x01\x00\x00\x00a")
    with pytest.raises(InvalidRequest):
        check(1, b"\x00\x00\x00\x01a")


@pytest.mark.parametrize(
    ("shape", "count"),
    [pytest.param((), 1, id="a scalar"), pytest.param((2, 3), 6, id="two dimensions"), pytest.param((4, 0), 0, id="an empty one")],
)
def test_the_count_is_the_product_of_the_shape(shape: tuple[int, ...], count: int) -> None:
    data = encode_bytes_elements([b"a"] * count)
    finish(bytes_tensor_steps(Tensor("X", "BYTES", shape), data, start=0, end=len(data)))
    with pytest.raises(InvalidRequest, match=f"expected {count} string elements for inference input 'X', got {count + 1}"):
        finish(bytes_tensor_steps(Tensor("X", "BYTES", shape), data + b"\0\0\0\0", start=0, end=len(data) + 4))
