"""Result of one call of the command line in a test: its exit status and what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class CommandResult(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def table(self) -> list[list[str]]:
        """Split the output of a table into cells; no cell of it is empty or contains a space."""
        return [line.split() for line in self.out.splitlines()]


Tidegate = Callable[..., CommandResult]
