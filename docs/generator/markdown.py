"""Markdown as the reference's pages use it: paragraphs wrapped at the documents' width, and tables."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

_WIDTH = 108


def wrapped(text: str, indent: str = "") -> str:
    """Wrap each paragraph of a text; `indent` is what its lines but the first begin with."""
    paragraphs = re.split(r"\n\s*\n", text)
    fill = [
        textwrap.fill(" ".join(each.split()), _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        for each in paragraphs
    ]
    return "\n\n".join(fill)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Make a table; a row of it is one line, however long."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
