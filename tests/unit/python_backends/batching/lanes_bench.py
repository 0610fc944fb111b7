"""Requests that wait in the lanes of a batcher."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from python_backends.runtime.execution import Answer

PATIENCE_S = 10.0


@dataclass(eq=False)
class Asked:
    """A request that remembers its answers; sending the first fails where told to."""

    answers: list[Answer] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    fails: bool = False

    def answer(self, answer: Answer) -> None:
        self.answers.append(answer)
        self.done.set()
        if self.fails:
            raise OSError("gone")

    def result(self) -> Answer:
        assert self.done.wait(PATIENCE_S), "no answer"
        return self.answers[0]
