"""Text of a growing list of tokens, in pieces that are never cut inside a character or a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_PROMPT_CONTEXT = 6
"""Tokens of the prompt by which it is known whether the answer begins with a blank."""
_MAX_HELD = 8
"""Tokens after which bytes that still make no character are given out as they decode: no character has more than 4 bytes."""


class TextStream:
    """Incremental decoder of one answer; `stop` ends it, and is not part of its text."""

    def __init__(self, decode: Decode, stop: Sequence[str] = (), prompt: Sequence[int] = ()) -> None:
        """`decode` leaves special tokens out."""
        self._decode = decode
        self._stop = stop
        # Decoded again with each new token, as some tokenizers drop a blank before a text's first token. The text of the first
        # `_context` tokens is out already, that of the others not yet.
        self._tokens: list[int] = [*prompt[-_PROMPT_CONTEXT:]]
        self._context = len(self._tokens)
        self._held = ""
        """Text that could be the beginning of a stop string."""

    def push(self, token: int, *, may_stop: bool = True) -> tuple[str, bool]:
        """Add a token; return the text that is final now, and whether a stop string has ended the answer."""
        self._held += self._decoded(token)
        if may_stop:
            found = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
            if found:
                text, self._held = self._held[: min(found)], ""
                return text, True
        kept = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        ready = len(self._held) - kept
        text, self._held = self._held[:ready], self._held[ready:]
        return text, False

    def finish(self) -> str:
        """Return what was held back; the bytes of a character that never became whole are left out."""
        text, self._held = self._held, ""
        return text

    def _decoded(self, token: int) -> str:
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if text.endswith(_UNFINISHED) and len(self._tokens) - self._context < _MAX_HELD:
            return ""
        before = self._decode(self._tokens[: self._context])
        self._tokens = self._tokens[self._context :]
        self._context = len(self._tokens)
        return text[len(before) :]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, but not the whole of it."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
