"""Runs one target under atheris (libFuzzer for Python): `python -m tests.fuzz.targets.fuzz_X [libFuzzer's flags] [corpus folder]`.

A target is a module with `check(data)`, which returns for whatever bytes, or raises: then it has found a defect. Modules
under test are imported within `instrumented()`, so that coverage guides the search. Without atheris a target can still be
imported, and its corpus replayed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

MAX_BYTES = 4096
"""Longest input; the parsers' own limits are far above, and what they do at those the unit tests know."""


def instrumented() -> AbstractContextManager[object]:
    """While a target that is run by itself imports what it tests; only then, for it slows everything else down."""
    if not sys.argv[0].endswith(".py") or "fuzz_" not in sys.argv[0]:
        return nullcontext()
    import atheris

    scope: AbstractContextManager[object] = atheris.instrument_imports(include=["control_plane", "python_backends"])
    return scope


def fuzz(check: Callable[[bytes], None]) -> None:
    """Never returns: libFuzzer ends the process."""
    import atheris

    atheris.Setup([*sys.argv, f"-max_len={MAX_BYTES}"], check)
    atheris.Fuzz()


def slices(data: bytes) -> Iterator[bytes]:
    """`data` cut where its own first bytes say, which are part of it: the same input gives the same slices."""
    at, turn = 0, 0
    while at < len(data):
        size = 1 + data[turn % len(data)] % 61
        yield data[at : at + size]
        at, turn = at + size, turn + 1
