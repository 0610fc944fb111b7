"""Parser of `multipart/form-data` (RFC 7578) that is fed a form piece by piece, as it arrives.

It keeps the head of a part at most, and as many bytes of a part's content as may be the beginning of a boundary.
Used by `frontends/batches/upload`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from control_plane.core.errors import InvalidRequest

_MAX_PARTS = 20
_MAX_HEAD_BYTES = 4096
_BOUNDARY = re.compile(r'multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))\s*(?:;.*)?', re.IGNORECASE)
_DISPOSITION = re.compile(r"content-disposition\s*:\s*form-data\s*(;.*)", re.IGNORECASE)
_PARAMETER = re.compile(r';\s*([a-z*]+)="((?:[^"\\]|\\.)*)"', re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class PartBegan:
    """Beginning of a field of a form; `filename` is None for one that is no file."""

    name: str
    filename: str | None


@dataclass(frozen=True, slots=True)
class PartContent:
    """Some of the content of the field that began last."""

    data: bytes


FormEvent = PartBegan | PartContent


class _At(Enum):
    """State of the parser: the part of a multipart form that comes next."""

    BOUNDARY = auto()
    """The first boundary, at the very beginning."""
    AFTER_BOUNDARY = auto()
    """Two dashes, or the head of a part."""
    HEAD = auto()
    CONTENT = auto()
    END = auto()


class FormParser:
    """Parser of one form."""

    def __init__(self, content_type: str) -> None:
        """Raises InvalidRequest: the Content-Type is not a form's."""
        found = _BOUNDARY.fullmatch(content_type.strip())
        if found is None:
            raise InvalidRequest("the Content-Type must be multipart/form-data with a boundary, and the body such a form")
        self._delimiter = b"\r\n--" + (found.group(1) or found.group(2)).encode("latin-1")
        self._rest = bytearray()
        self._at = _At.BOUNDARY
        self._names = set[str]()
        self._skips = 0

    def feed(self, piece: bytes | bytearray) -> Iterator[FormEvent]:
        """Yield what the next piece of the form has; what follows its last line is dropped. Raises InvalidRequest."""
        self._rest += piece
        while (event := self._step()) is not None:
            if event is not _NOTHING:
                yield event

    def finish(self) -> None:
        """Require that the form is whole. Raises InvalidRequest."""
        if self._at is _At.BOUNDARY:
            raise _no_boundary()
        if self._at is not _At.END:
            raise InvalidRequest("the form ends within a field; its last line must be the boundary with two dashes after it")

    def _step(self) -> FormEvent | None:
        """Do the next step; None: it needs more of the form."""
        match self._at:
            case _At.BOUNDARY:
                return self._first_boundary()
            case _At.AFTER_BOUNDARY:
                if len(self._rest) < 2:
                    return None
                self._at = _At.END if self._rest.startswith(b"--") else _At.HEAD
                return _NOTHING
            case _At.HEAD:
                return self._head()
            case _At.CONTENT:
                return self._content()
            case _At.END:
                self._rest.clear()
                return None

    def _first_boundary(self) -> FormEvent | None:
        first = self._delimiter[2:]
        if not first.startswith(self._rest[: len(first)]):
            raise _no_boundary()
        if len(self._rest) < len(first):
            return None
        del self._rest[: len(first)]
        self._at = _At.AFTER_BOUNDARY
        return _NOTHING

    def _head(self) -> FormEvent | None:
        end = self._rest.find(_HEAD_END, 0, _MAX_HEAD_BYTES)
        if end < 0:
            if len(self._rest) >= _MAX_HEAD_BYTES:
                raise InvalidRequest(f"the head of a field of the form does not end within {_MAX_HEAD_BYTES} bytes")
            return None
        name, filename = _named(self._rest[:end].decode("utf-8", "replace"))
        if name in self._names:
            raise InvalidRequest(f"the form has the field {name[:50]!r} twice")
        if len(self._names) == _MAX_PARTS:
            raise InvalidRequest(f"the form has more than {_MAX_PARTS} fields")
        self._names.add(name)
        del self._rest[: end + 2]  # the delimiter of an empty part begins with the head's last line end
        self._at = _At.CONTENT
        self._skips = 2
        return PartBegan(name, filename)

    def _content(self) -> FormEvent | None:
        end = self._rest.find(self._delimiter)
        if end >= 0:
            data = bytes(self._rest[self._skips : end])
            del self._rest[: end + len(self._delimiter)]
            self._at = _At.AFTER_BOUNDARY
            return PartContent(data) if data else _NOTHING
        stop = len(self._rest) - len(self._delimiter) + 1
        if stop <= self._skips:
            return None
        data = bytes(self._rest[self._skips : stop])
        del self._rest[:stop]
        self._skips = 0
        return PartContent(data)


_NOTHING = PartContent(b"")
"""A step that has no event."""


def _no_boundary() -> InvalidRequest:
    return InvalidRequest("the form does not begin with the boundary that the Content-Type names")


def _named(head: str) -> tuple[str, str | None]:
    """Return the name and the filename that the head of a part gives."""
    for line in head.split("\r\n"):
        found = _DISPOSITION.fullmatch(line)
        if found is not None:
            given = {name.lower(): re.sub(r"\\(.)", r"\1", value) for name, value in _PARAMETER.findall(found.group(1))}
            if "name" in given:
                return given["name"], given.get("filename")
    raise InvalidRequest("each field of the form must have a Content-Disposition: form-data with a name")
