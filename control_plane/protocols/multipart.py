"""Parser of `multipart/form-data` (RFC 7578), for forms that are whole in memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from control_plane.core.errors import InvalidRequest

_MAX_PARTS = 20
_MAX_HEAD_BYTES = 4096
_BOUNDARY = re.compile(r'multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))\s*(?:;.*)?', re.IGNORECASE)
_DISPOSITION = re.compile(r"content-disposition\s*:\s*form-data\s*(;.*)", re.IGNORECASE)
_PARAMETER = re.compile(r';\s*([a-z*]+)="((?:[^"\\]|\\.)*)"', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FormPart:
    """A field of a form; `filename` is None for one that is no file."""

    filename: str | None
    content: bytes


def read_form(content_type: str, body: bytes | bytearray) -> dict[str, FormPart]:
    """Return the fields of a form, by name. Raises InvalidRequest: it is none, or a name comes twice."""
    found = _BOUNDARY.fullmatch(content_type.strip())
    if found is None:
        raise InvalidRequest("the Content-Type must be multipart/form-data with a boundary, and the body such a form")
    delimiter = b"\r\n--" + (found.group(1) or found.group(2)).encode("latin-1")
    first, form = delimiter[2:], dict[str, FormPart]()
    if not body.startswith(first):
        raise InvalidRequest("the form does not begin with the boundary that the Content-Type names")
    at = len(first)
    while not body.startswith(b"--", at):
        if len(form) == _MAX_PARTS:
            raise InvalidRequest(f"the form has more than {_MAX_PARTS} fields")
        head_end = body.find(b"\r\n\r\n", at, at + _MAX_HEAD_BYTES)
        end = body.find(delimiter, head_end + 2) if head_end >= 0 else -1
        if end < 0:
            raise InvalidRequest("the form ends within a field; its last line must be the boundary with two dashes after it")
        name, filename = _named(bytes(body[at:head_end]).decode("utf-8", "replace"))
        if name in form:
            raise InvalidRequest(f"the form has the field {name[:50]!r} twice")
        form[name] = FormPart(filename, bytes(body[head_end + 4 : end]))
        at = end + len(delimiter)
    return form


def _named(head: str) -> tuple[str, str | None]:
    """Return the name and the filename that the head of a part gives."""
    for line in head.split("\r\n"):
        found = _DISPOSITION.fullmatch(line)
        if found is not None:
            given = {name.lower(): re.sub(r"\\(.)", r"\1", value) for name, value in _PARAMETER.findall(found.group(1))}
            if "name" in given:
                return given["name"], given.get("filename")
    raise InvalidRequest("each field of the form must have a Content-Disposition: form-data with a name")
