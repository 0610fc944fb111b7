"""What a build says while it goes on: lines for people, or a JSON object a line for a program.

The program is the gateway that builds in the background: `models/domain/build_message.py` reads them.
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
    """Prints what a build does as it does it: one line per step, with its seconds. A label is a model's name, or `MODEL/VARIANT`."""

    stream: TextIO

    def begun(self, label: str, reason: str) -> None:
        """It is built, or only measured, for that reason; the steps that follow are its own."""
        self._write(f"{label}: {reason}\n")

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Name the step when it begins and its seconds when it ends, also where it fails."""
        self._write(f"  {what} ... ")
        started_s = time.monotonic()
        try:
            yield
        finally:
            self._write(f"{time.monotonic() - started_s:.1f} s\n")

    def found(self, what: str) -> None:
        """What came of the last step."""
        self._write(f"  {what}\n")

    def built(self, label: str, *, may_be_chosen: bool) -> None:
        """It is in place, whole; `may_be_chosen` where nobody has named a variant."""

    def skipped(self, label: str, reason: str) -> None:
        """It cannot be built here and need not be."""
        self._write(f"{label}: skipped, {reason}\n")

    def failed(self, label: str, message: str) -> None:
        """It could not be built; the label is empty where that is no target's own fault."""
        print(f"error: {f'{label}: ' if label else ''}{message}", file=sys.stderr)

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


class JsonProgress(Progress):
    """Tells a program the same: `event`, `target` and what else it is about."""

    def begun(self, label: str, reason: str) -> None:
        """See `Progress`."""
        self._tell("begun", target=label, text=reason)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """See `Progress`; its end is not told."""
        self._tell("step", text=what)
        yield

    def found(self, what: str) -> None:
        """See `Progress`."""
        self._tell("step", text=what)

    def built(self, label: str, *, may_be_chosen: bool) -> None:
        """See `Progress`."""
        self._tell("built", target=label, may_be_chosen=may_be_chosen)

    def skipped(self, label: str, reason: str) -> None:
        """See `Progress`."""
        self._tell("skipped", target=label, text=reason)

    def failed(self, label: str, message: str) -> None:
        """See `Progress`."""
        self._tell("failed", target=label, text=message)

    def _tell(self, event: str, **about: object) -> None:
        self._write(f"{json.dumps({'event': event, **about})}\n")
