"""Reads pairs of sentences with people's similarity scores: the project's own set, and files of the STS
benchmark.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from python_backends.export.recipe import BuildError


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sentences, and their similarity as people scored it, 0 to 5."""

    score: float
    first: str
    second: str


def read_similarity(path: Path) -> list[Pair]:
    """Read a file of lines `score<TAB>sentence1<TAB>sentence2`.

    Raises:
        BuildError: The file cannot be read, or a line is malformed.
    """
    rows = enumerate((line.split("\t") for line in _lines(path)), start=1)
    return [_pair(row, path, number, score=0) for number, row in rows]


def read_sts_benchmark(path: Path) -> list[Pair]:
    """Read a CSV file `sentence1,sentence2,score`, with or without a header row.

    Raises:
        BuildError: The file cannot be read, or a line is malformed.
    """
    rows = list(_numbered(path))
    if rows and [cell.strip() for cell in rows[0][1]] == ["sentence1", "sentence2", "score"]:
        del rows[0]
    if not rows:
        raise BuildError(f"'{path}' holds no pairs")
    return [_pair(row, path, number, score=2) for number, row in rows]


def _pair(row: Sequence[str], path: Path, number: int, *, score: int) -> Pair:
    try:
        first, second = (cell for column, cell in enumerate(row) if column != score)
        return Pair(float(row[score]), first, second)
    except (ValueError, IndexError):
        raise BuildError(f"'{path}', line {number}: not two sentences and a number") from None


def _numbered(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(_lines(path, keep_ends=True), strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as exc:
        raise BuildError(f"'{path}', line {reader.line_num}: {exc}") from exc


def _lines(path: Path, *, keep_ends: bool = False) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise BuildError(f"'{path}' cannot be read: {exc}") from exc
    # Split at line feeds only: `splitlines` also splits at characters that occur in sentences.
    lines = text.split("\n")
    return [f"{line}\n" for line in lines] if keep_ends else [line for line in lines if line]
