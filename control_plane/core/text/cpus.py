"""Lists of CPUs as `taskset` and the kernel write them (`0,2`, `0-3`), and their division among workers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

_PART = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


def parse_cpus(text: str) -> tuple[int, ...]:
    """Parse a list into CPU numbers, in its order, without duplicates. Raises ValueError, which shows a valid
    list.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{part.strip()!r} is not a CPU or range of CPUs; write a list such as 0, 0,2 or 0-3")
        found |= dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(found)


def is_range(cpus: Sequence[int]) -> bool:
    """Whether the CPUs are consecutive."""
    return all(after == before + 1 for before, after in pairwise(cpus))


def cpus_of_worker(cpus: Sequence[int], worker: int, workers: int) -> tuple[int, ...]:
    """Return every `workers`-th CPU, from number `worker` on (counted from 0); a single worker gets all."""
    return tuple(cpus[worker::workers])


def format_cpus(cpus: Sequence[int]) -> str:
    """Format CPUs as a list that `parse_cpus` reads."""
    return ",".join(map(str, cpus))
