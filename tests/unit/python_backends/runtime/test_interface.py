"""A model's interface, and inputs that are refused before it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.runtime.errors import ConfigError, RequestError
from python_backends.runtime.interface import Interface, TensorSpec, by_name, read_interface, write_interface
from python_backends.runtime.signature import Signature, TensorSignature

IDS = TensorSpec("IDS", "TYPE_INT64", ("batch", "length"), below=10)
MASK = TensorSpec("MASK", "TYPE_INT64", ("batch", "length"))
EMBEDDING = TensorSpec("EMBEDDING", "TYPE_FP32", ("batch", 3))
COUNT = TensorSpec("COUNT", "TYPE_INT32", ("batch",))
INTERFACE = Interface((IDS, MASK), (EMBEDDING, COUNT), {"length": 8})


def inputs(batch: int = 2, length: int = 4, **changes: Any) -> dict[str, Any]:
    return {"IDS": np.zeros((batch, length), np.int64), "MASK": np.ones((batch, length), np.int64), **changes}


@given(st.integers(1, 50), st.integers(1, 8))
def test_what_fits_has_sizes(batch: int, length: int) -> None:
    assert INTERFACE.check(["EMBEDDING"], inputs(batch, length)) == {"batch": batch, "length": length}


def test_the_largest_value_and_length_fit() -> None:
    assert INTERFACE.check([], inputs(1, 8, IDS=np.full((1, 8), 9))) == {"batch": 1, "length": 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"MORE": np.zeros(1)}, "the inputs must be IDS, MASK, not IDS, MASK, MORE", id="too-many"),
        pytest.param({"IDS": np.zeros((2, 4), np.int32)}, "input 'IDS' must be TYPE_INT64, not int32", id="data-type"),
        pytest.param({"IDS": np.zeros(4, np.int64)}, r"input 'IDS' must have the shape \[batch, length\], not \[4\]", id="rank"),
        pytest.param({"IDS": np.zeros((), np.int64)}, r"input 'IDS' must have the shape \[batch, length\], not \[\]", id="scalar"),
        pytest.param({"MASK": np.zeros((2, 5), np.int64)}, r"input 'MASK' must have the shape \[2, 4\], not \[2, 5\]", id="length-differs"),
        pytest.param({"MASK": np.zeros((3, 4), np.int64)}, r"input 'MASK' must have the shape \[2, 4\], not \[3, 4\]", id="batch-differs"),
        pytest.param({"IDS": np.zeros((2, 9), np.int64)}, "input 'IDS' has a length of 9, the model takes 1..8", id="too-long"),
        pytest.param({"IDS": np.zeros((2, 0), np.int64)}, "input 'IDS' has a length of 0, the model takes 1..8", id="no-length"),
        pytest.param({"IDS": np.zeros((0, 4), np.int64)}, "input 'IDS' has a batch of 0, the model takes 1..any", id="no-batch"),
        pytest.param({"IDS": np.array([[0, 10]])}, r"input 'IDS' has values in 0..10, the model takes 0..9", id="value"),
        pytest.param({"IDS": np.array([[-1, 3]])}, r"input 'IDS' has values in -1..3, the model takes 0..9", id="negative"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        INTERFACE.check([], inputs(**changes))


def test_missing_inputs_and_unknown_outputs_are_named() -> None:
    with pytest.raises(RequestError, match="the inputs must be IDS, MASK, not none"):
        INTERFACE.check([], {})
    with pytest.raises(RequestError, match="there is no output LOGITS, the model has: EMBEDDING, COUNT"):
        INTERFACE.check(["COUNT", "LOGITS"], inputs())


def test_fixed_dimensions_are_fixed() -> None:
    image = Interface((TensorSpec("IMAGE", "TYPE_UINT8", ("batch", 3, "width")),), ())

    assert image.check([], {"IMAGE": np.zeros((2, 3, 7), np.uint8)})["width"] == 7
    with pytest.raises(RequestError, match=r"must have the shape \[batch, 3, width\], not \[2, 4, 7\]"):
        image.check([], {"IMAGE": np.zeros((2, 4, 7), np.uint8)})


def test_its_signature_has_no_names_of_dimensions() -> None:
    assert INTERFACE.signature == Signature(
        (TensorSignature("IDS", "TYPE_INT64", (-1, -1)), TensorSignature("MASK", "TYPE_INT64", (-1, -1))),
        (TensorSignature("EMBEDDING", "TYPE_FP32", (-1, 3)), TensorSignature("COUNT", "TYPE_INT32", (-1,))),
    )


def test_sizes_of_arrays_that_fit() -> None:
    assert INTERFACE.sizes([np.zeros((2, 5)), np.zeros((2, 5))]) == {"batch": 2, "length": 5}
    assert EMBEDDING.shape({"batch": 2, "length": 5}) == (2, 3)


def test_outputs_come_in_the_order_in_which_they_are_asked_for() -> None:
    embedding, count = np.zeros((2, 3)), np.zeros(2)

    assert by_name(INTERFACE, ["COUNT", "EMBEDDING"], [embedding, count]) == [count, embedding]
    assert by_name(INTERFACE, ["COUNT"], [embedding, count]) == [count]


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_interface(INTERFACE, tmp_path)

    assert read_interface(tmp_path) == INTERFACE


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("{", id="cut-short"),
        pytest.param("[]", id="a-list"),
        pytest.param('{"inputs": [], "maximum": {}}', id="no-outputs"),
        pytest.param(
            json.dumps({"inputs": [{"name": "X", "data_type": "TYPE_BF16", "dims": [], "below": None}], "outputs": [], "maximum": {}}),
            id="data-type",
        ),
    ],
)
def test_what_is_no_interface_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "interface.json").write_text(content)

    with pytest.raises(ConfigError, match=r"interface\.json' does not describe a model .*: build the model again"):
        read_interface(tmp_path)


def test_a_missing_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_interface(tmp_path)
