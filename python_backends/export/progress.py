"""One line per step of a build, with its seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True, slots=True)
class Progress:
    """Prints what a build does as it does it."""

    stream: TextIO

    def say(self, line: str) -> None:
        """Print a line."""
        self.stream.write(f"{line}\n")
        self.stream.flush()

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Name the step when it begins and its seconds when it ends, also where it fails."""
        self.stream.write(f"  {what} ... ")
        self.stream.flush()
        started_s = time.monotonic()
        try:
            yield
        finally:
            self.stream.write(f"{time.monotonic() - started_s:.1f} s\n")
            self.stream.flush()
