"""Counts the elements of a tensor whose data is in JSON, before Triton allocates an object for each.

Called by `infer_json`. `json_outline` has counted the elements of long arrays already; the other arrays are
short.
"""

from __future__ import annotations

from typing import Any

from control_plane.core.errors import InvalidRequest
from control_plane.core.tensor import Tensor, element_count


def check_element_count(tensor: Tensor, data: object, json_bytes: int) -> None:
    """Check that `data` has as many elements as the tensor's shape says; `json_bytes` is the size of all the
    JSON.

    Data that is no array, and any data of an empty tensor, is left to Triton to refuse. Raises
    InvalidRequest.
    """
    wanted = element_count(tensor.shape)
    if type(data) is list:
        if _looks_right(data, wanted):
            return
        found = _count(data)
    elif type(data) is int:  # the count that `json_outline` put in the array's place
        found = data
    else:  # a shape of more elements than the JSON has bytes cannot be honest, whatever Triton makes of `data`
        found = min(wanted, json_bytes)
    if found != wanted and wanted:
        raise InvalidRequest(
            f"Unable to parse 'data': Shape does not match true shape of 'data' field: input '{tensor.name}' of shape "
            f"{list(tensor.shape)} takes {wanted} elements, got {found}"
        )


def _looks_right(data: list[Any], wanted: int) -> bool:
    """Fast check for the usual data: a flat array, or an array of flat rows.

    It looks at the first row only. Irregular data that passes is short, and Triton refuses it.
    """
    if not data or type(data[0]) is not list:
        return len(data) == wanted
    try:
        return sum(map(len, data)) == wanted and (not data[0] or type(data[0][0]) is not list)
    except TypeError:
        return False


def _count(data: list[Any]) -> int:
    """Count the scalars in nested arrays, which may be ragged: Triton accepts those too."""
    found, level = 0, [data]
    while level:
        inner = [each for array in level for each in array if type(each) is list]
        found += sum(map(len, level)) - len(inner)
        level = inner
    return found
