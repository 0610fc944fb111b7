"""Counts the elements of a tensor whose data is written out in JSON, before Triton makes an object of each.

`json_outline` has counted those of long arrays; what is left is short.
"""

from __future__ import annotations

from typing import Any

from control_plane.core.errors import InvalidRequest
from control_plane.core.tensor import Tensor, element_count


def check_count(tensor: Tensor, data: object, json_bytes: int) -> None:
    """Check that `data` has as many elements as the tensor's shape says, in JSON of so many bytes.

    What is no array, and whatever an empty tensor comes with, is Triton's to judge. Raises InvalidRequest.
    """
    wanted = element_count(tensor.shape)
    if type(data) is list:
        if _looks_right(data, wanted):
            return
        found = _count(data)
    elif type(data) is int:  # an outline's count
        found = data
    else:
        found = min(wanted, json_bytes)
    if found != wanted and wanted:
        raise InvalidRequest(
            f"Unable to parse 'data': Shape does not match true shape of 'data' field: input '{tensor.name}' of shape "
            f"{list(tensor.shape)} takes {wanted} elements, got {found}"
        )


def _looks_right(data: list[Any], wanted: int) -> bool:
    """Of data that is flat, or an array of flat rows, as it mostly is; what only looks so is small, and Triton's to refuse."""
    if not data or type(data[0]) is not list:
        return len(data) == wanted
    try:
        return sum(map(len, data)) == wanted and (not data[0] or type(data[0][0]) is not list)
    except TypeError:
        return False


def _count(data: list[Any]) -> int:
    """Of nested arrays, which may be ragged, as Triton takes them, too."""
    found, level = 0, [data]
    while level:
        inner = [each for array in level for each in array if type(each) is list]
        found += sum(map(len, level)) - len(inner)
        level = inner
    return found
