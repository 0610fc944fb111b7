"""A YAML file that lists the Tritons of a fleet; `fleet/ports.ServerList`.

    - url: http://10.0.0.5:8000?grpc_port=8001&metrics_port=8002
      name: triton-5            # its host and port if it has none
      pool: short
      labels: {zone: a}
      memory_budget: 8GiB       # the fleet's own if it has none

Looked at by what tells one file from another (times, size, inode) and through links, so that replacing it in one step is seen, also as
Kubernetes does it with a ConfigMap. It is taken up once it has been the same for two looks: what is being written may lack a half.
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
from control_plane.settings import POOL, ByteCount, can_be_told, parse_triton_url, without_secrets

_MOST_BYTES = 2**20
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
_SUCH_AS = "such as `- url: http://10.0.0.5:8000`"


class _Shown(reprlib.Repr):
    """What is wrong, cut short; a password first, of which a cut would leave the beginning."""

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(without_secrets(x), level)


_shown = _Shown()
_shown.maxstring = 100


def _require_text(text: str) -> str:
    if not can_be_told(text):
        raise ValueError("should be a text")
    return text


_Text = Annotated[str, AfterValidator(_require_text)]


class _Entry(BaseModel):
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


class ServersFile:
    """One such file."""

    def __init__(self, path: Path) -> None:
        self.name = f"--servers-file {path}"
        self._path = path
        self._read: Hashable = None
        """What told the file apart when it was read."""
        self._seen: Hashable = None

    def read(self) -> list[ListedServer]:
        """See `fleet/ports.ServerList.read`."""
        self._read = self._seen = self._stamp()  # before, so that what is written meanwhile is seen as a change
        entries = self._parse(self._load())
        servers = [self._server(number, entry) for number, entry in enumerate(entries, start=1)]
        self._refuse_twins("name", [each.name for each in servers])
        self._refuse_twins("host and grpc_port", [each.endpoints.place for each in servers])
        return servers

    def has_changed(self) -> bool:
        """See `fleet/ports.ServerList.has_changed`."""
        before, self._seen = self._seen, self._stamp()
        return self._seen == before and self._seen != self._read

    def _stamp(self) -> Hashable:
        try:
            found = os.stat(self._path)
        except OSError as exc:
            return exc.errno
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size

    def _load(self) -> Any:
        try:
            with self._path.open("rb") as file:
                text = file.read(_MOST_BYTES + 1)
        except OSError as exc:
            self._read = exc.errno  # so that it is tried again, unless looking at it fails likewise
            raise self._wrong(f"cannot be read: {exc.strerror}; it should be a YAML list of servers, {_SUCH_AS}") from None
        if len(text) > _MOST_BYTES:
            raise self._wrong(f"is larger than {_MOST_BYTES} bytes")
        try:
            return yaml.safe_load(io.BytesIO(text))  # of a stream its messages show no lines, which may have a password
        except yaml.YAMLError as exc:
            raise self._wrong(f"is no YAML: {' '.join(without_secrets(str(exc)).split())}") from None
        except (ArithmeticError, AttributeError, LookupError, ValueError, RecursionError):  # of its readers of dates, numbers and truths
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
        for number, value in enumerate(values, start=1):
            if (first := values.index(value) + 1) < number:
                raise self._wrong(f"entries {first} and {number} have the same {what}, {value}")

    def _wrong(self, what: str) -> StartupError:
        return StartupError(f"{self.name}: {what}")


def _describe(error: Any) -> str:
    number, *path = error["loc"]
    where = f"entry {number + 1}" + "".join(f": {part}" for part in path if part != "[key]")
    said = _WORDS.get(error["type"]) or error["msg"].removeprefix("Value error, ")
    return f"{without_secrets(where)} {said}, got {_shown.repr(error['input'])}"
