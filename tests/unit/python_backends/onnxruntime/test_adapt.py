"""Strings and scalars between Triton and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from python_backends.onnxruntime.adapt import decode_strings, with_scalars
from python_backends.runtime.errors import RequestError
from python_backends.runtime.execution import Array, Tensors
from python_backends.runtime.signature import Signature, TensorSignature
from tests.unit.python_backends.configs import config, tensor

SQUARE = Signature(
    (TensorSignature("X", "TYPE_FP32", ()),), (TensorSignature("Y", "TYPE_FP32", ()), TensorSignature("PAIR", "TYPE_FP32", (2,)))
)


def square(names: Sequence[str], inputs: Tensors) -> list[Array]:
    assert inputs["X"].shape == ()
    outputs = {"Y": inputs["X"] ** 2, "PAIR": np.float32([1, 2])}
    return [outputs[name] for name in names]


def test_strings_are_decoded_in_their_shape_and_numbers_left_alone() -> None:
    numbers = np.ones((2, 2))

    decoded = decode_strings({"S": np.array([[b"a", "é".encode()]], dtype=np.object_), "N": numbers})

    assert decoded["S"].tolist() == [["a", "é"]]
    assert decoded["N"] is numbers


def test_an_empty_string_tensor_keeps_its_shape() -> None:
    assert decode_strings({"S": np.empty((0, 3), dtype=np.object_)})["S"].shape == (0, 3)


def test_a_string_that_is_not_utf8_is_the_requests_fault() -> None:
    with pytest.raises(RequestError, match=r"S\[1\] is not valid UTF-8"):
        decode_strings({"S": np.array([[b"a", b"\xff"]], dtype=np.object_)})


def test_a_scalar_is_sent_without_dimensions_and_returned_with_those_configured() -> None:
    configured = config(input=[tensor("X", dims=[1])], output=[tensor("Y", dims=[1, 1]), tensor("PAIR")])

    pair, y = with_scalars(square, configured, SQUARE)(["PAIR", "Y"], {"X": np.float32([3])})

    assert (y.shape, y.tolist()) == ((1, 1), [[9]])
    assert pair.tolist() == [1, 2]


def test_without_scalars_nothing_stands_between() -> None:
    plain = Signature((TensorSignature("X", "TYPE_FP32", (-1, 2)),), (TensorSignature("Y", "TYPE_FP32", (-1, 2)),))

    assert with_scalars(square, config(), plain) is square
