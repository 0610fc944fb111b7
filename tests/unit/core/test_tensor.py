from __future__ import annotations

import numpy as np
import pytest
from tritonclient.utils import triton_to_np_dtype

from control_plane.core.tensor import DATATYPE_BYTES, element_count


@pytest.mark.parametrize("datatype", sorted(DATATYPE_BYTES.keys() - {"BYTES", "BF16"}))
def test_sizes_are_those_of_tritons_own_client(datatype: str) -> None:
    assert np.dtype(triton_to_np_dtype(datatype)).itemsize == DATATYPE_BYTES[datatype]


def test_the_two_that_numpy_has_no_type_for() -> None:
    assert (DATATYPE_BYTES["BYTES"], DATATYPE_BYTES["BF16"]) == (0, 2)


@pytest.mark.parametrize(("shape", "count"), [((), 1), ((3,), 3), ((2, 3), 6), ((2, 0, 5), 0)])
def test_element_count(shape: tuple[int, ...], count: int) -> None:
    assert element_count(shape) == count
