"""Decoding of BYTES tensors: Triton delivers bytes; tokenizers and ONNX Runtime need str."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from python_backends.runtime.errors import RequestError


def decode_utf8(array: NDArray[Any], name: str) -> list[str]:
    """Decode the elements of a BYTES tensor of any shape, in C order; `name` is the tensor's name for the
    error.

    Raises:
        RequestError: An element is not UTF-8; the text says which (counted from 0) and at which byte.
    """
    values: list[bytes] = array.ravel().tolist()
    try:
        return [value.decode() for value in values]
    except UnicodeDecodeError as exc:
        index = values.index(exc.object)
        raise RequestError(f"{name}[{index}] is not valid UTF-8: {exc.reason} at byte {exc.start} of {len(exc.object)}") from None
