"""The count of a JSON text's brackets, braces and commas: what has more than the limit outside its strings is refused, and nothing else."""

from __future__ import annotations

import orjson

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from control_plane.core.algorithms.steps import finish
    from control_plane.core.errors import PayloadTooLarge
    from control_plane.protocols.json_structure import MOST, bounded_steps

_BYTES = MOST + 8192
"""Length of the texts that are made of an example: shorter ones are parsed uncounted."""


def _marks(element: bytes) -> int:
    """Count the brackets, braces and commas outside the strings of valid JSON, a byte at a time."""
    marks, is_string, is_escaped = 0, False, False
    for byte in element:
        if is_string:
            is_escaped, is_string = byte == 0x5C and not is_escaped, is_escaped or byte != 0x22
        elif byte == 0x22:
            is_string = True
        else:
            marks += byte in b"[]{},"
    return marks


def check(data: bytes) -> None:
    number = _BYTES // (len(data) + 1) + 1
    text = b"[" + b",".join([data] * number) + b"]"
    try:
        orjson.loads(data)
        marks = number * _marks(data) + number + 1
    except orjson.JSONDecodeError:
        marks = None
    try:
        finish(bounded_steps(text))
    except PayloadTooLarge:
        assert marks is None or marks > MOST, f"{marks} marks are refused"
        return
    assert marks is None or marks <= MOST, f"{marks} marks are accepted"


if __name__ == "__main__":
    fuzz(check)
