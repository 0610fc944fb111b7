"""Lists of CPUs, as `taskset` and the kernel write them: `0`, `0,2`, `0-3`; and which of them each worker takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

_PART = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


def parse_cpus(text: str) -> tuple[int, ...]:
    """The numbers of a list, in its order, each once. Raises ValueError, saying what a list looks like."""
    found: dict[int, None] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{part.strip()!r} is no CPU; write a list such as 0, 0,2 or 0-3")
        found |= dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(found)


def is_range(cpus: Sequence[int]) -> bool:
    """Whether each is one more than the one before."""
    return all(after == before + 1 for before, after in pairwise(cpus))


def cpus_of_worker(cpus: Sequence[int], worker: int, workers: int) -> tuple[int, ...]:
    """Every `workers`-th CPU from the `worker`-th on (from 0): one worker has all, as many as there are CPUs one each."""
    return tuple(cpus[worker::workers])


def format_cpus(cpus: Sequence[int]) -> str:
    """As `parse_cpus` reads it."""
    return ",".join(map(str, cpus))
