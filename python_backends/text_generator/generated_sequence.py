"""One request while it is answered: the tokens that it gives to each step, and what its reader hears of those that come out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from python_backends.runtime.engines.causal_lm import KeyValues, Piece
from python_backends.runtime.errors import BackendError
from python_backends.text_generator.sampling import Draw
from python_backends.text_generator.sampling_parameters import SamplingParameters
from python_backends.text_generator.text_stream import TextStream

STOP, LENGTH = "stop", "length"


@dataclass(frozen=True, slots=True)
class Written:
    """A part of an answer: text, tokens since the part before, and with the last part why it ended."""

    text: str
    tokens: int
    finish_reason: str = ""


class Reader(Protocol):
    """Whoever asked. Methods are called in the loop's thread and must not wait for the reader."""

    @property
    def is_gone(self) -> bool:
        """Whether nobody waits for the answer any more."""
        ...

    def take(self, written: Written) -> None:
        """Take the next part; the one with a `finish_reason` is the last."""
        ...

    def fail(self, error: BackendError) -> None:
        """Take an error, after which nothing comes."""
        ...


@dataclass(slots=True, eq=False)
class GeneratedSequence:
    """A request that is answered, and what its tokens leave behind."""

    prompt: Sequence[int]
    parameters: SamplingParameters
    reader: Reader
    draw: Draw
    stream: TextStream
    kept: KeyValues | None = None
    unread: int = field(init=False)
    next_token: int = -1
    untold: int = 0
    """Tokens of which the reader has not heard."""

    def __post_init__(self) -> None:
        self.unread = len(self.prompt)

    @property
    def reserved(self) -> int:
        """Tokens of the key-value cache that it may come to fill."""
        return len(self.prompt) + self.parameters.max_tokens

    def piece(self, share: int) -> Piece:
        """Return the tokens of the next step: `share` of its prompt, or the token that it wrote last."""
        if self.kept is None:
            self.kept = KeyValues(self.reserved)
        if not self.unread:
            return Piece([self.next_token], self.kept)
        at = len(self.prompt) - self.unread
        self.unread -= share
        return Piece(self.prompt[at : at + share], self.kept)

    def write(self, token: int, ends: Collection[int]) -> bool:
        """Take the token that was chosen, tell the reader; return whether the answer is whole."""
        self.next_token = token
        self.untold += 1
        count = self.draw.count
        is_end = token in ends and not self.parameters.ignore_eos
        text, stopped = ("", False) if is_end else self.stream.push(token, may_stop=count >= self.parameters.min_tokens)
        reason = STOP if is_end or stopped else LENGTH if count >= self.parameters.max_tokens else ""
        if reason and not stopped:
            text += self.stream.finish()
        if text or reason:
            self.reader.take(Written(text, self.untold, reason))
            self.untold = 0
        return bool(reason)
