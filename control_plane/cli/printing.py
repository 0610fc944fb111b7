"""How commands print: tables on standard output, remarks beside them on standard error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_WIDTH = 10_000
"""Names and numbers are there to be copied: whole in a narrow terminal and in a pipe."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """None is an empty cell; no cell can do anything to a terminal."""
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*map(_cell, row))
    Console(soft_wrap=True, width=_WIDTH).print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """One thing, a line for each of its fields that is not empty."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for field, value in fields:
        if value:
            table.add_row(field, _cell(value))
    Console(soft_wrap=True, width=_WIDTH).print(table)


def remark(text: str) -> None:
    """Beside what the command answers: a program that reads its output does not get it."""
    Console(stderr=True).print(escape(printable(text)), highlight=False, soft_wrap=True)


def moment(time_s: float | None) -> str:
    """Seconds since 1970 as people read them, in UTC; None is empty."""
    return "" if time_s is None else datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return escape(printable(f"{value:.10g}" if isinstance(value, float) else str(value)))


def printable(text: str) -> str:
    """Without what would do something to a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
