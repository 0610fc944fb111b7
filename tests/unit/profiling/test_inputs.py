"""Requests that are made up for a model."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.profiling.inputs import request_for

DRAW = random.Random(1)


def metadata(datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": "m", "inputs": [{"name": "X", "datatype": datatype, "shape": list(shape)}]}


@pytest.mark.parametrize(
    ("datatype", "is_one"),
    [
        ("FP32", lambda value: isinstance(value, float) and 0 <= value <= 1),
        ("INT64", lambda value: isinstance(value, int) and 0 <= value < 100),
        ("UINT8", lambda value: isinstance(value, int) and 0 <= value < 100),
        ("BOOL", lambda value: isinstance(value, bool)),
        ("BYTES", lambda value: isinstance(value, str)),
    ],
)
def test_tensors_have_their_type_and_open_dimensions_are_one(datatype: str, is_one: Any) -> None:
    (tensor,) = request_for(metadata(datatype, -1, 3), DRAW)["inputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("X", datatype, [1, 3])
    assert len(tensor["data"]) == 3
    assert all(map(is_one, tensor["data"]))


def test_texts_differ_so_that_no_cache_answers() -> None:
    assert len({json.dumps(request_for(metadata("BYTES", 1), DRAW)) for _ in range(100)}) == 100


def test_what_json_cannot_carry_is_told() -> None:
    with pytest.raises(InvalidRequest, match=r"'X' is BF16.*--data"):
        request_for(metadata("BF16", 1), DRAW)


def test_a_huge_tensor_is_not_made_up() -> None:
    with pytest.raises(InvalidRequest, match=r"'X' has 1073741824 elements.*--data"):
        request_for(metadata("FP32", 2**30), DRAW)
