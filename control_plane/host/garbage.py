"""The garbage collector of a serving process, which stops everybody while it looks through all objects."""

from __future__ import annotations

import gc


def keep_what_is_there() -> None:
    """Exempt all objects that exist now from garbage collection: the 120,000 of modules and what is wired take 70 ms to look through."""
    gc.collect()
    gc.freeze()
