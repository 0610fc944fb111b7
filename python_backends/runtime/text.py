"""BYTES tensors as text: Triton delivers bytes, tokenizers and ONNX Runtime want str."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from python_backends.runtime.errors import RequestError


def decode_utf8(array: NDArray[Any], name: str) -> list[str]:
    """The elements of a BYTES tensor of any shape, in C order; `name` is the tensor's, for the error.

    Raises:
        RequestError: One is not UTF-8; says which, counted from 0, and where in it.
    """
    values: list[bytes] = array.ravel().tolist()
    try:
        return [value.decode() for value in values]
    except UnicodeDecodeError as exc:
        index = values.index(exc.object)
        raise RequestError(f"{name}[{index}] is not valid UTF-8: {exc.reason} at byte {exc.start} of {len(exc.object)}") from None
