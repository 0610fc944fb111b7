"""Progress reports of a build: lines for people, or a JSON object per line for a program.

The program is a gateway that builds in the background; its `models/domain/build_message.py` parses them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress report for people: a line per step, with its seconds. Labels are a model's name, or
    `MODEL/VARIANT`.
    """

    stream: TextIO

    def begun(self, label: str, reason: str) -> None:
        """Report that a target is being built or measured, and why; the following steps belong to it."""
        self._write(f"{label}: {reason}\n")

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Report a step when it begins, and its seconds when it ends or fails."""
        self._write(f"  {what} ... ")
        started_s = time.monotonic()
        try:
            yield
        finally:
            self._write(f"{time.monotonic() - started_s:.1f} s\n")

    def found(self, what: str) -> None:
        """Report the result of the last step."""
        self._write(f"  {what}\n")

    def built(self, label: str, *, is_auto_eligible: bool) -> None:
        """Report that a target is published; `is_auto_eligible` says whether `auto` may choose it. People need
        no such line.
        """

    def skipped(self, label: str, reason: str) -> None:
        """Report that a target cannot be built here and was not demanded by name."""
        self._write(f"{label}: skipped, {reason}\n")

    def failed(self, label: str, message: str) -> None:
        """Report that a target could not be built; the label is empty if no target is at fault."""
        print(f"error: {f'{label}: ' if label else ''}{message}", file=sys.stderr)

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


class JsonProgress(Progress):
    """Progress report for a program: objects with `event`, `target` and further fields."""

    def begun(self, label: str, reason: str) -> None:
        """See `Progress`."""
        self._tell("begun", target=label, text=reason)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """See `Progress`; the step's end is not reported."""
        self._tell("step", text=what)
        yield

    def found(self, what: str) -> None:
        """See `Progress`."""
        self._tell("step", text=what)

    def built(self, label: str, *, is_auto_eligible: bool) -> None:
        """See `Progress`."""
        self._tell("built", target=label, is_auto_eligible=is_auto_eligible)

    def skipped(self, label: str, reason: str) -> None:
        """See `Progress`."""
        self._tell("skipped", target=label, text=reason)

    def failed(self, label: str, message: str) -> None:
        """See `Progress`."""
        self._tell("failed", target=label, text=message)

    def _tell(self, event: str, **about: object) -> None:
        self._write(f"{json.dumps({'event': event, **about})}\n")
