"""Printing of commands: results as tables on standard output, remarks about them on standard error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

_WIDTH = 10_000
"""Width in columns of tables. So wide that no cell is ever cut: names and numbers are there to be copied."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, wraps: bool = False) -> None:
    """Print rows as a table; None is an empty cell, a `Text` keeps its style. Control characters in other cells
    are replaced by blanks.

    With `wraps`, long cells are wrapped to fit the terminal: for sentences, which nobody copies.
    """
    # Folded, since a path or a URL is one long word, whose end would be cut off.
    table = Table(*(Column(column, overflow="fold") for column in columns), box=None)
    for row in rows:
        table.add_row(*map(_cell, row))
    Console(soft_wrap=True, width=None if wraps else _WIDTH).print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print one object: a line for each field that is not empty."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for field, value in fields:
        if value:
            table.add_row(field, _cell(value))
    Console(soft_wrap=True, width=_WIDTH).print(table)


def remark(text: str) -> None:
    """Print a note for people on standard error, so that programs that read the output do not get it."""
    Console(stderr=True).print(escape(printable(text)), highlight=False, soft_wrap=True)


def moment(time_s: float | None) -> str:
    """Format seconds since 1970 as date and time in UTC; None is empty."""
    return "" if time_s is None else datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M")


def _cell(value: object) -> str | Text:
    if value is None:
        return ""
    if isinstance(value, Text):
        return value
    return escape(printable(_number(value) if isinstance(value, float) else str(value)))


def _number(value: float) -> str:
    """Format a number with the digits that people write it with: 0.00002, not 2e-05."""
    text = f"{value:.10g}"
    return f"{Decimal(text):f}" if isfinite(value) else text


def printable(text: str) -> str:
    """Replace control characters by blanks: names and reasons from models must not send escape codes to a
    terminal.
    """
    return "".join(letter if letter.isprintable() else " " for letter in text)
