"""Reads the YAML file that lists the other regions' gateways (`--regions-file`), once at the start.

- name: us-east
  url: https://tidegate.us.example:8000
  grpc_url: https://grpc.us.example:8001   # default: the next port of the same host
  ca: /etc/tidegate/us-ca.pem              # default: this machine's authorities
  max_share: 0.25                          # default: 1
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from control_plane.core.endpoints import TcpAddress, UpstreamCredentials
from control_plane.core.errors import StartupError
from control_plane.core.text.redaction import without_secrets
from control_plane.core.text.validation_words import words_of
from control_plane.host.bounded_file import read_bounded
from control_plane.host.network.exposure import is_loopback
from control_plane.regions.domain.region import Region

_MAX_BYTES = 2**18
_MAX_REGIONS = 32
_SUCH_AS = "such as `- {name: us-east, url: 'https://tidegate.us.example:8000'}`"


class _Entry(BaseModel):
    """Schema of one entry of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    url: str
    grpc_url: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    max_share: float = Field(1.0, ge=0, le=1, allow_inf_nan=False)


_ENTRIES = TypeAdapter(list[_Entry])


def read_regions(path: Path, *, own: str) -> list[Region]:
    """Read the other regions. Raises StartupError, which never shows a value that may be a secret.

    `own` is this gateway's region, which the file may list, too, so that all regions can have one file: it is left out.
    """
    where = f"--regions-file {path}"
    try:
        text = read_bounded(path, _MAX_BYTES)
    except OSError as exc:
        raise StartupError(f"{where}: cannot be read: {exc.strerror}; it should be a YAML list, {_SUCH_AS}") from None
    except ValueError as exc:
        raise StartupError(f"{where}: {exc}") from None
    try:
        entries = _ENTRIES.validate_python(_load(text, where))
    except ValidationError as exc:
        raise StartupError(f"{where}: {'; '.join(map(_described, exc.errors(include_url=False)))}; expected {_SUCH_AS}") from None
    names = [entry.name for entry in entries]
    if twins := sorted({name for name in names if names.count(name) > 1}):
        raise StartupError(f"{where}: two entries have the name {', '.join(twins)}")
    if len(entries) > _MAX_REGIONS:
        raise StartupError(f"{where}: has {len(entries)} regions; {_MAX_REGIONS} is the most")
    return [_region(entry, where) for entry in entries if entry.name != own]


def _load(text: bytes, where: str) -> Any:
    try:
        return yaml.safe_load(io.BytesIO(text))
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, ValueError, RecursionError):
        raise StartupError(f"{where}: is no YAML that can be read; it should be a list, {_SUCH_AS}") from None


def _region(entry: _Entry, where: str) -> Region:
    credentials = UpstreamCredentials(ca=entry.ca, certificate=entry.certificate, key=entry.key)
    http = _address(entry.url, credentials, f"{where}: region {entry.name}: url", default_port=8000)
    if entry.grpc_url:
        grpc = _address(entry.grpc_url, credentials, f"{where}: region {entry.name}: grpc_url", default_port=8001)
    else:
        grpc = TcpAddress(http.host, http.port + 1, http.tls)
    return Region(entry.name, http, grpc, entry.max_share)


def _address(url: str, credentials: UpstreamCredentials, where: str, *, default_port: int) -> TcpAddress:
    expected = "expected https://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port or default_port
    except ValueError:
        raise StartupError(f"{where}: {expected}") from None
    has_more = "@" in parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or has_more:
        raise StartupError(f"{where}: {expected}, without a user, a path or a query")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise StartupError(
            f"{where}: {expected}: callers' keys go with their requests, and over http:// everybody on the way could read them"
        )
    return TcpAddress(parts.hostname, port, credentials if parts.scheme == "https" else None)


def _described(error: Any) -> str:
    number, *path = error["loc"] or (None,)
    entry = f"entry {number + 1}" if isinstance(number, int) else "the file"
    return without_secrets(f"{entry}{''.join(f': {part}' for part in path)} {words_of(error['msg'])}")
