"""File format of a backup: JSON lines, a header, then one object or usage sum per line, then a digest of all
of them.

Called by `cli/backup`; does no I/O. A file that was cut short or changed is refused as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from control_plane.core.errors import InvalidRequest
from control_plane.metering.domain.usage import Usage, UsageKey
from control_plane.objects.domain.stored import Kind, Stored

FORMAT = 1

Totals = list[tuple[UsageKey, Usage]]


@dataclass(frozen=True, slots=True)
class Backup:
    """Snapshot of the state store (keys, tenants, routes, prices) and of the usage sums."""

    objects: list[Stored]
    totals: Totals


@dataclass(frozen=True, slots=True)
class _ObjectLine:
    """Line of a backup: an object of the state store."""

    kind: Kind
    name: str
    resource_version: int
    body: dict[str, Any]
    line: Literal["object"] = "object"


@dataclass(frozen=True, slots=True)
class _UsageLine:
    """Line of a backup: the sums of usage of one key."""

    key: UsageKey
    sums: Usage
    line: Literal["usage"] = "usage"


_LINE: TypeAdapter[_ObjectLine | _UsageLine] = TypeAdapter(Annotated[_ObjectLine | _UsageLine, Field(discriminator="line")])


def write_backup(backup: Backup) -> bytes:
    """Encode the content of a backup file."""
    content = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in _lines(backup))
    return content + _end(content)


def read_backup(file: bytes) -> Backup:
    """Decode what `write_backup` returned. Raises InvalidRequest, which says what is wrong with the file."""
    lines = file.splitlines(keepends=True)
    found = _read_header(lines[0] if lines else b"")
    if found != FORMAT:
        raise InvalidRequest(f"it has format {found}, and this tidegate reads {FORMAT}: use the tidegate that wrote it, or a newer one")
    if lines[-1] != _end(b"".join(lines[:-1])):
        raise InvalidRequest("it is incomplete, or was changed: its last line is not the digest of the others")
    read = [_read_line(number, line) for number, line in enumerate(lines[1:-1], start=2)]
    return Backup(
        [Stored(line.kind, line.name, line.resource_version, line.body) for line in read if isinstance(line, _ObjectLine)],
        [(line.key, line.sums) for line in read if isinstance(line, _UsageLine)],
    )


def _lines(backup: Backup) -> Iterator[object]:
    yield {"line": "backup", "of": "tidegate", "format": FORMAT}
    for stored in backup.objects:
        if stored.body is not None:
            yield _ObjectLine(Kind(stored.kind), stored.name, stored.resource_version, dict(stored.body))
    yield from (_UsageLine(key, usage) for key, usage in backup.totals)


def _end(content: bytes) -> bytes:
    return orjson.dumps({"line": "end", "sha256": hashlib.sha256(content).hexdigest()}, option=orjson.OPT_APPEND_NEWLINE)


def _read_header(line: bytes) -> int:
    try:
        header = orjson.loads(line)
        if header["line"] == "backup" and header["of"] == "tidegate":
            return int(header["format"])
    except (ValueError, TypeError, KeyError):
        pass
    raise InvalidRequest("it is not a backup by tidegate: its first line does not say so")


def _read_line(number: int, line: bytes) -> _ObjectLine | _UsageLine:
    try:
        return _LINE.validate_json(line)
    except ValidationError as exc:
        raise InvalidRequest(f"line {number} cannot be read: {exc.error_count()} fields are missing or invalid") from exc
