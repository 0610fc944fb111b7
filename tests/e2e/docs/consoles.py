"""Consoles in Markdown: the commands that they show after `$ `, and what those are said to print.

A document's test runs each command and compares with `require_same`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

_CONSOLES = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ ", re.MULTILINE)
_REAL_NUMBER = re.compile(r"-?\d+\.\d*(?:e-?\d+)?")

# An embedding's values differ that much between the variants that machines serve, a training's results by less between processors.
_TOLERANCE = 0.03


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a console, with the output that the document promises."""

    line: str
    """As a shell takes it; it may go over several lines."""
    output: str


def commands_in(markdown: str) -> list[Command]:
    """Every command of the document's consoles, in order. A line that leaves a quote open, or ends in a backslash, goes on in the next."""
    return [_command(part) for console in _CONSOLES.findall(markdown) for part in _COMMAND.split(console)[1:]]


def require_same(shown: str, promised: str) -> None:
    """AssertionError unless the words are equal and real numbers are almost equal."""
    assert _words(shown) == _words(promised), f"printed:\n{shown}\npromised:\n{promised}"
    found, expected = ([float(number) for number in _REAL_NUMBER.findall(text)] for text in (shown, promised))
    np.testing.assert_allclose(found, expected, atol=_TOLERANCE)


def _command(text: str) -> Command:
    lines = text.splitlines()
    count = 1
    while _goes_on("\n".join(lines[:count])):
        count += 1
    return Command("\n".join(lines[:count]), "\n".join(lines[count:]).strip())


def _goes_on(line: str) -> bool:
    return line.endswith("\\") or line.count("'") % 2 == 1


def _words(text: str) -> list[str]:
    return _REAL_NUMBER.sub("R", text).split()
