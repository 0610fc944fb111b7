"""A YAML file that lists the Tritons of a fleet; it implements `fleet/ports.ServerList`.

    - url: http://10.0.0.5:8000?grpc_port=8001&metrics_port=8002
      name: triton-5            # default: its host and port
      pool: short
      labels: {zone: a}
      memory_budget: 8GiB       # default: the fleet's own

A change is noticed by the file's metadata (times, size, inode), through links, so an atomic replacement is
seen, also that of a Kubernetes ConfigMap. It is taken up once two looks in a row have found it the same: a
file that is being written may lack a half.
"""

from __future__ import annotations

import io
import os
import reprlib
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from control_plane.core.endpoints import ListedServer, authority
from control_plane.core.errors import StartupError
from control_plane.core.text.redaction import without_secrets
from control_plane.core.text.validation_words import words_of
from control_plane.host.bounded_file import read_bounded
from control_plane.settings import POOL, ByteCount, is_utf8_encodable, parse_triton_url

_MAX_BYTES = 2**20
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
_SUCH_AS = "such as `- url: http://10.0.0.5:8000`"


class _Shown(reprlib.Repr):
    """Abbreviates a wrong value for a message. Passwords are removed before it is cut: a cut could leave the
    beginning of one."""

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(without_secrets(x), level)


_shown = _Shown()
_shown.maxstring = 100


def _require_text(text: str) -> str:
    if not is_utf8_encodable(text):
        raise ValueError("should be a text")
    return text


_Text = Annotated[str, AfterValidator(_require_text)]


class _Entry(BaseModel):
    """Schema of one entry of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")

    url: str
    name: str | None = Field(None, pattern=_NAME)
    pool: str = Field("", pattern=rf"^(?:{POOL.pattern})?$")
    labels: dict[_Text, _Text] = Field(default_factory=dict)
    memory_budget: ByteCount | None = None


_ENTRIES = TypeAdapter(list[_Entry])
_WORDS = {
    "missing": "is missing",
    "extra_forbidden": f"is not known; expected {', '.join(_Entry.model_fields)}",
    "string_type": "should be a text; put it in quotes",
    "string_pattern_mismatch": "should be letters, digits, '.', '_' and '-'",
    "model_type": f"should be a mapping, {_SUCH_AS}",
}
"""Pydantic's error types in our words."""


class ServersFile:
    """Server list in a YAML file."""

    def __init__(self, path: Path) -> None:
        self.name = f"--servers-file {path}"
        self._path = path
        self._read: Hashable = None
        """The file's stamp when it was last read."""
        self._seen: Hashable = None
        """The file's stamp when it was last looked at."""

    def read(self) -> list[ListedServer]:
        """See `fleet/ports.ServerList.read`."""
        # Before reading, so that what is written meanwhile is seen as a change.
        self._read = self._seen = self._stamp()
        entries = self._parse(self._load())
        servers = [self._server(number, entry) for number, entry in enumerate(entries, start=1)]
        self._refuse_twins("name", [each.name for each in servers])
        self._refuse_twins("host and grpc_port", [each.endpoints.address for each in servers])
        return servers

    def has_changed(self) -> bool:
        """See `fleet/ports.ServerList.has_changed`."""
        before, self._seen = self._seen, self._stamp()
        return self._seen == before and self._seen != self._read

    def _stamp(self) -> Hashable:
        """Return a stamp that tells one version of the file from another; an errno if it cannot be looked
        at."""
        try:
            found = os.stat(self._path)
        except OSError as exc:
            return exc.errno
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size

    def _load(self) -> Any:
        """Read and parse the file. Messages must not quote its lines, which may hold passwords."""
        try:
            text = read_bounded(self._path, _MAX_BYTES)
        except OSError as exc:
            # Differs from the stamp of a file that can be looked at, so it is tried again.
            self._read = exc.errno
            raise self._wrong(f"cannot be read: {exc.strerror}; it should be a YAML list of servers, {_SUCH_AS}") from None
        except ValueError as exc:
            raise self._wrong(str(exc)) from None
        try:
            # A stream: for a string, PyYAML's messages quote lines, which may hold a password.
            return yaml.safe_load(io.BytesIO(text))
        except yaml.YAMLError as exc:
            raise self._wrong(f"is no YAML: {' '.join(without_secrets(str(exc)).split())}") from None
        # PyYAML lets these pass from its constructors of dates, numbers and booleans.
        except (ArithmeticError, AttributeError, LookupError, ValueError, RecursionError):
            raise self._wrong(
                "is no YAML that can be read: a value is not what its tag or its form says, or it is nested too deep"
            ) from None

    def _parse(self, loaded: Any) -> list[_Entry]:
        if not isinstance(loaded, list) or not loaded:
            raise self._wrong(f"should be a list of at least one server, {_SUCH_AS}")
        try:
            return _ENTRIES.validate_python(loaded)
        except ValidationError as exc:
            raise self._wrong("; ".join(_describe(error) for error in exc.errors())) from None

    def _server(self, number: int, entry: _Entry) -> ListedServer:
        endpoints = parse_triton_url(entry.url, setting=f"{self.name}: entry {number}: url")
        name = entry.name or authority(endpoints.host, endpoints.http_port)
        return ListedServer(name, endpoints, entry.pool, entry.labels, entry.memory_budget)

    def _refuse_twins(self, what: str, values: list[str]) -> None:
        """Raise if two entries have the same value."""
        for number, value in enumerate(values, start=1):
            if (first := values.index(value) + 1) < number:
                raise self._wrong(f"entries {first} and {number} have the same {what}, {value}")

    def _wrong(self, what: str) -> StartupError:
        return StartupError(f"{self.name}: {what}")


def _describe(error: Any) -> str:
    """Say of one validation error which entry it concerns and what would be right, without secrets."""
    number, *path = error["loc"]
    where = f"entry {number + 1}" + "".join(f": {part}" for part in path if part != "[key]")
    said = _WORDS.get(error["type"]) or words_of(error["msg"])
    return f"{without_secrets(where)} {said}, got {_shown.repr(error['input'])}"
