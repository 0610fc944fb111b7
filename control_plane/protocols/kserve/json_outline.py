"""The outline of a large JSON text: all of it but its data, small enough to be parsed at once.

Parsing 128 MiB of numbers takes seconds that nobody else gets, and a gigabyte for the objects. What has to be checked of
it is small: so long arrays that hold no object, and long strings, are passed over in steps and stand as a number, which is how
many elements the array has, and as `""` in the outline. Whoever needs an array or a string there finds none and refuses it.
What was passed over Triton parses itself; in JSON that is valid, and Triton takes no other, brackets and strings are found
here exactly, and so are elements: the commas of an array and of those in it, and one, less an empty array's.
"""

from __future__ import annotations

import re

from control_plane.core.errors import PayloadTooLarge, UnparsableRequest
from control_plane.core.steps import Steps
from control_plane.protocols.kserve.body_limits import BodyLimits

_LONG_BYTES = 1024
"""An array or a string up to this length is kept as it is."""

_STEP_BYTES = 64 * 1024
"""About 0.3 ms of scanning."""

_TOKENS_PER_STEP = 256
"""Brackets and long strings found one by one: about 0.5 ms."""

_MAX_OUTLINE_BYTES = 1 << 20
_MAX_DEPTH = 1000
"""Of arrays within arrays; the parser's own limit of nesting is 1024."""

_PLAIN = re.compile(rb'(?:[^"\[\]{]++|"[^"\\]{0,1000}+(?:\\.[^"\\]{0,100}+){0,9}+"|\[[^"\[\]{]{0,1000}+\])*+', re.DOTALL)
"""What needs no looking at: scalars, whole short strings, whole short arrays of scalars."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_EMPTY = re.compile(rb"\[[ \t\r\n]*+\]")
_WITHIN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_QUOTE, _OPEN, _CLOSE, _BRACE, _COMMA = b'"[]{,'


def outline_steps(text: bytes | bytearray | memoryview, limits: BodyLimits) -> Steps[bytes]:
    """The outline of `text`, which need not be valid JSON; its outline is not either, then.

    Raises:
        UnparsableRequest: a string has no end, arrays are nested too deep, or an array mixes much data with objects.
        PayloadTooLarge: without its data it is still large, or it has more elements than `limits`.
    """
    outline, at, tokens, step_end = _Outline(text, limits), 0, 0, _STEP_BYTES
    while at < len(text):
        began, at = at, _end(_PLAIN, text, at)
        outline.count(began, at)
        token = text[at] if at < len(text) else None
        if token == _QUOTE:
            began = at
            at = yield from _string_end_steps(text, at + 1)
            outline.pass_string(began, at)
        elif token == _OPEN:
            outline.open_array(at)
            at += 1
        elif token == _CLOSE:
            at += 1
            outline.close_array(at)
        elif token == _BRACE:
            outline.open_object(at)
            at += 1
        tokens += 1
        if at >= step_end or tokens == _TOKENS_PER_STEP:
            yield
            tokens, step_end = 0, at + _STEP_BYTES
    return outline.whole()


def _string_end_steps(text: bytes | bytearray | memoryview, at: int) -> Steps[int]:
    """Where the string ends that has been going on at `at`."""
    while True:
        at = _end(_WITHIN_STRING, text, at)
        if text[at : at + 1] == b'"':
            return at + 1
        if at + 1 >= len(text):
            raise UnparsableRequest("failed to parse the request JSON buffer: a string has no end")
        yield


def _end(pattern: re.Pattern[bytes], text: bytes | bytearray | memoryview, at: int) -> int:
    """Where the match of `pattern` at `at` ends, a step further at most; the patterns match nothing at all, too."""
    match = pattern.match(text, at, at + _STEP_BYTES)
    assert match is not None
    return match.end()


class _Outline:
    def __init__(self, text: bytes | bytearray | memoryview, limits: BodyLimits) -> None:
        self._text = memoryview(text)
        self._limits = limits
        self._elements = 0
        """Commas so far, less empty arrays: how many more there are at an array's end than at its start is one less than its elements."""
        self._kept = bytearray()
        self._done = 0
        """Up to where the text is in `_kept` or has been passed over."""
        self._arrays: list[tuple[int, int, int]] = []
        """Of the open arrays without an object: where they begin, in the text and in `_kept`, and `_elements` there."""
        self._has_dropped = False
        """Whether some of the outermost of them is missing in `_kept`, as all of it will."""

    def count(self, began: int, end: int) -> None:
        """Count the elements in a part that has no end of a string within it. Raises PayloadTooLarge."""
        if end - began < 2:
            self._elements += end > began and self._text[began] == _COMMA
        else:
            part = bytes(self._text[began:end])
            if b'"' in part:
                part = _STRING.sub(b"", part)
            self._elements += part.count(b",")
            if b"[" in part:
                self._elements -= len(_EMPTY.findall(part))
        if self._elements >= self._limits.max_elements:
            self._limits.refuse_elements()

    def open_array(self, at: int) -> None:
        if len(self._arrays) == _MAX_DEPTH:
            raise UnparsableRequest("failed to parse the request JSON buffer: it is nested too deep")
        self._keep(at)
        self._arrays.append((at, len(self._kept), self._elements))

    def close_array(self, end: int) -> None:
        if not self._arrays:
            return
        began, kept_bytes, elements = self._arrays.pop()
        if end - began > _LONG_BYTES:
            self._replace(kept_bytes, end, b" %d " % (self._elements - elements + 1))  # blanks, so that what stands beside it is no digit
        if not self._arrays:
            self._has_dropped = False

    def open_object(self, at: int) -> None:
        self._keep(at)
        if self._has_dropped:
            raise UnparsableRequest("an array holds both data and objects")
        self._arrays.clear()

    def pass_string(self, began: int, end: int) -> None:
        if end - began > _LONG_BYTES:
            self._keep(began)
            self._replace(len(self._kept), end, b'""')

    def whole(self) -> bytes:
        self._arrays.clear()
        self._keep(len(self._text))
        return bytes(self._kept)

    def _keep(self, up_to: int) -> None:
        if self._arrays and up_to - self._arrays[0][0] > _LONG_BYTES:
            self._has_dropped = True
        elif len(self._kept) + up_to - self._done > _MAX_OUTLINE_BYTES:
            raise PayloadTooLarge(f"the JSON without its data exceeds {_MAX_OUTLINE_BYTES} bytes")
        else:
            self._kept += self._text[self._done : up_to]
        self._done = up_to

    def _replace(self, kept_bytes: int, end: int, by: bytes) -> None:
        del self._kept[kept_bytes:]
        self._kept += by
        self._done = end
