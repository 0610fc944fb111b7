"""Outlines a large JSON text: removes its bulk data, so that the rest is small enough to be parsed at once.

Parsing 128 MiB of numbers would block the event loop for seconds and take a gigabyte for the objects, while
the parts that must be checked are small. So a scanner that runs in steps replaces each long array without
objects by its number of elements, and each long string by `""`. Code that needs an array or a string there
finds none and refuses the request.

Triton parses the removed data itself. The scanner is exact for valid JSON only, which is all that Triton
accepts: there it finds brackets and strings exactly, and the elements of an array are its commas (those of
nested arrays included) plus one, minus the nested arrays that are empty.
"""

from __future__ import annotations

import re

from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import PayloadTooLarge, UnparsableRequest
from control_plane.protocols.kserve.requests.body_limits import BodyLimits

_LONG_BYTES = 1024
"""Arrays and strings up to this length stay as they are."""

_STEP_BYTES = 16 * 1024
"""Scanning so much takes 0.05 ms where it is numbers, and 0.4 ms where it is empty lists."""

_TOKENS_PER_STEP = 256
"""Brackets and long strings are handled one by one; so many take about 0.5 ms."""

_MAX_OUTLINE_BYTES, _MAX_LISTS, _MAX_KEYS = 1 << 20, 4096, 16 * 1024
"""Largest outline, and most lists and objects, and keys of these, in it: it is parsed at once."""
_MAX_DEPTH = 1000
"""Deepest nesting of arrays; the JSON parser's own limit is 1024."""

_PLAIN = re.compile(rb'(?:[^"\[\]{]++|"[^"\\]{0,1000}+(?:\\.[^"\\]{0,100}+){0,9}+"|\[[^"\[\]{]{0,1000}+\])*', re.DOTALL)
"""Text to skip at one go: scalars, whole short strings, whole short arrays of scalars. Like the other
patterns it costs linear time for a hostile text, too: quantifiers are possessive, but for the outermost. Before
Python 3.11.5 a possessive group whose inside fails half-way matches too much (gh-106052); greedy, it is as quick,
since it matches the empty text as well and so is never tried again."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_BLANKS = b" \t\r\n"
_EMPTY = re.compile(rb"\[[ \t\r\n]*+\]")
_WITHIN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_QUOTE, _OPEN, _CLOSE, _BRACE, _COMMA = b'"[]{,'


def outline_steps(text: bytes | bytearray | memoryview, limits: BodyLimits) -> Steps[bytes]:
    """Outline `text`, in steps.

    If `text` is not valid JSON, neither is its outline, and the parser refuses it.

    Raises:
        UnparsableRequest: a string has no end, arrays are nested too deep, or an array mixes much data with
            objects.
        PayloadTooLarge: the outline is still large, or has very many lists; or there are more elements than `limits`.
    """
    outline, at, tokens, step_end = _Outline(text, limits), 0, 0, _STEP_BYTES
    while at < len(text):
        began, at = at, _end(_PLAIN, text, at)
        outline.count(began, at)
        token = text[at] if at < len(text) else None
        if token == _QUOTE:
            began = at
            at = yield from _string_end_steps(text, at + 1)
            outline.skip_string(began, at)
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
    """The end of the string whose inside begins at `at`."""
    while True:
        at = _end(_WITHIN_STRING, text, at)
        if text[at : at + 1] == b'"':
            return at + 1
        if at + 1 >= len(text):
            raise UnparsableRequest("failed to parse the request JSON buffer: a string has no end")
        yield


def _end(pattern: re.Pattern[bytes], text: bytes | bytearray | memoryview, at: int) -> int:
    """The end of the match of `pattern` at `at`, at most one step further; the patterns match the empty text
    as well."""
    match = pattern.match(text, at, at + _STEP_BYTES)
    assert match is not None
    return match.end()


class _Outline:
    """Builder of the outline: copies text, counts elements, and replaces long arrays and strings."""

    def __init__(self, text: bytes | bytearray | memoryview, limits: BodyLimits) -> None:
        self._text = memoryview(text)
        self._limits = limits
        self._elements = 0
        """Commas so far, minus empty arrays; its growth from an array's start to its end, plus one, is the
        array's elements."""
        self._objects = 0
        self._kept = bytearray()
        self._done = 0
        """Position up to which the text has been copied to `_kept` or dropped."""
        self._arrays: list[tuple[int, int, int]] = []
        """Open arrays that hold no object so far: their start in the text and in `_kept`, and `_elements` at
        that point."""
        self._has_dropped = False
        """Whether a part of the outermost open array has been dropped already, as the rest of it will be."""

    def count(self, began: int, end: int) -> None:
        """Count the elements in a part of the text that holds whole strings only. Raises PayloadTooLarge."""
        if end - began < 2:
            self._elements += end > began and self._text[began] == _COMMA
        else:
            part = bytes(self._text[began:end])
            if b'"' in part:
                part = _STRING.sub(b"", part)
            self._elements += part.count(b",")
            if b"[" in part:
                self._elements -= part.translate(None, _BLANKS).count(b"[]")  # in two passes, however many there are
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
        if _EMPTY.fullmatch(self._text, began, end):  # one that the end of a step has cut
            self._elements -= 1
        if end - began > _LONG_BYTES:
            # Between blanks: a digit beside it in invalid JSON must not become a part of the number.
            self._replace(kept_bytes, end, b" %d " % (self._elements - elements + 1))
        if not self._arrays:
            self._has_dropped = False

    def open_object(self, at: int) -> None:
        self._keep(at)
        if self._has_dropped:
            raise UnparsableRequest("an array holds both data and objects")
        self._objects += 1
        if self._objects > _MAX_LISTS:  # each stays, so that the end of the text need not be waited for
            raise _too_many_lists()
        self._arrays.clear()  # an array with an object in it is structure, which must be checked, and stays

    def skip_string(self, began: int, end: int) -> None:
        if end - began > _LONG_BYTES:
            self._keep(began)
            self._replace(len(self._kept), end, b'""')

    def whole(self) -> bytes:
        self._arrays.clear()
        self._keep(len(self._text))
        if self._kept.count(b"[") + self._kept.count(b"{") > _MAX_LISTS:
            raise _too_many_lists()
        if self._kept.count(b":") > _MAX_KEYS:
            raise PayloadTooLarge(f"the JSON without its data has more than {_MAX_KEYS} keys")
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


def _too_many_lists() -> PayloadTooLarge:
    return PayloadTooLarge(f"the JSON without its data has more than {_MAX_LISTS} lists and objects")
