"""Every setting of `tidegate serve`, parsed once; each is also an environment variable `TIDEGATE_<NAME>`.

Built by the command line and handed on by group. Unknown `TIDEGATE_` variables are errors, so that a misspelt one
never passes for a default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from control_plane.domain.endpoints import TritonEndpoints
from control_plane.domain.errors import StartupError

PROJECT_ROOT = Path(__file__).resolve().parent.parent
ENV_PREFIX = "TIDEGATE_"


def _split_commas(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NameList = Annotated[list[str], NoDecode, BeforeValidator(_split_commas)]
PathList = Annotated[list[Path], NoDecode, BeforeValidator(_split_commas)]


class _Group(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)


class GatewaySettings(_Group):
    """The data plane: where Triton's clients connect."""

    host: str = "127.0.0.1"
    """Address of the HTTP, gRPC and metrics ports. Anything beyond loopback needs authentication and is refused without."""

    http_port: Port = 8000
    """Triton's own default, so that clients need no change; 0 chooses a free one."""

    grpc_port: Port = 8001
    """Triton's own default; 0 chooses a free one."""

    metrics_port: Port = 8002
    """Triton's own default; 0 chooses a free one."""

    max_body_bytes: int = Field(128 * 2**20, ge=1024)
    """Largest request body or message, in bytes. Each is held in memory once; too small refuses image batches."""

    max_header_bytes: int = Field(16 * 2**10, ge=1024)
    """Largest request head, in bytes. Triton resets the connection between 8 and 16 KiB of headers."""

    max_connections: int = Field(4096, ge=1)
    """HTTP connections at a time; further ones are closed at once. Each costs a few KiB and a file descriptor."""

    max_upstream_connections: int = Field(256, ge=1)
    """HTTP connections to one Triton; requests beyond wait for one. Triton's eight threads share them."""

    request_timeout_s: Seconds = 30.0
    """Deadline in seconds of a request that names none (header `tidegate-timeout-ms`, or gRPC's own)."""

    drain_timeout_s: float = Field(4.0, ge=0, allow_inf_nan=False)
    """Seconds that requests in flight may go on after SIGTERM; with Triton's own exit it stays under ten."""


class AdminSettings(_Group):
    """The FastAPI admin API."""

    admin_host: str = "127.0.0.1"
    """Address of the admin API. Whoever reaches it can load models, which is code execution."""

    admin_port: Port = 8080
    """0 chooses a free one."""


class TritonSettings(_Group):
    """The Triton behind the gateway, embedded or attached."""

    model_repository: PathList = [PROJECT_ROOT / "model_repository", PROJECT_ROOT / "ensembles"]
    """Folders whose subfolders are models. A name in two of them is an error."""

    load: NameList | None = None
    """Models loaded at start; `*` is all. One that fails is reported and the rest is served.
    Not given: `text_embedding` from the project's own repositories, nothing from others' or into an attached Triton."""

    triton_url: str = ""
    """Attach to a running Triton instead: `http://HOST:HTTP_PORT[?grpc_port=N&metrics_port=N]`; the others default to the next two."""

    model_config_name: str = "auto"
    """Which `configs/<name>.pbtxt` of a model Triton uses; `auto` is `gpu` where an NVIDIA device is present, else the plain config."""

    load_timeout_s: Seconds = 300.0
    """Deadline of one load, in seconds. Triton cannot cancel a load; past this it is reported as failed."""

    start_timeout_s: Seconds = 60.0
    """Seconds a started Triton may take to become live. Two is usual; a GPU's first start takes longer."""

    cache_dir: Path = PROJECT_ROOT / ".cache"
    """Holds the downloaded wheels and the unpacked Triton."""

    python_backends: Path = PROJECT_ROOT / "python_backends"
    """Our Python-based backends."""


class ProcessSettings(_Group):
    """The process itself."""

    state_dir: Path = PROJECT_ROOT / ".state"
    """Everything a run writes: the managed repository, Triton's log, `endpoints.json`. One running `tidegate` each."""

    log_format: Literal["console", "json"] = "console"
    """`json` writes one object per line, for log collectors."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it, by group."""

    process: ProcessSettings
    gateway: GatewaySettings
    admin: AdminSettings
    triton: TritonSettings


_GROUPS: dict[str, type[_Group]] = {
    "process": ProcessSettings,
    "gateway": GatewaySettings,
    "admin": AdminSettings,
    "triton": TritonSettings,
}


def load_settings(overrides: Mapping[str, object] | None = None) -> Settings:
    """Defaults, then `TIDEGATE_` variables, then `overrides` (from the command line; None values count as not given).

    Raises:
        StartupError: an unknown variable or a value that does not fit; the text names it and what would fit.
    """
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    _refuse_unknown(os.environ)
    try:
        groups: dict[str, Any] = {
            key: group(**{name: given[name] for name in group.model_fields if name in given}) for key, group in _GROUPS.items()
        }
    except ValidationError as exc:
        raise StartupError("; ".join(_describe(error) for error in exc.errors())) from exc
    return Settings(**groups)


def effective(settings: Settings) -> dict[str, object]:
    """Every setting by name with its value in force, secrets masked."""
    return {name: value if not isinstance(value, SecretStr) else "********" for key in _GROUPS for name, value in getattr(settings, key)}


def parse_triton_url(url: str) -> TritonEndpoints:
    """Read `http://HOST:PORT[?grpc_port=N&metrics_port=N]`. Raises StartupError."""
    try:
        parts = urlsplit(url)
        ports = {name: int(values[-1]) for name, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()}
        http_port = parts.port or 8000
    except ValueError as exc:
        raise StartupError(f"--triton-url {url!r}: {exc}; expected {_TRITON_URL_FORM}") from exc
    has_more = parts.username is not None or parts.fragment or parts.path not in ("", "/") or ports.keys() - {"grpc_port", "metrics_port"}
    if parts.scheme != "http" or not parts.hostname or has_more:
        raise StartupError(f"--triton-url {url!r}: expected {_TRITON_URL_FORM}")
    grpc_port, metrics_port = ports.get("grpc_port", http_port + 1), ports.get("metrics_port", http_port + 2)
    if not all(0 < port <= _MAX_PORT for port in (grpc_port, metrics_port)):
        raise StartupError(f"--triton-url {url!r}: a port is beyond 1-{_MAX_PORT}; grpc_port and metrics_port default to the next two")
    return TritonEndpoints(host=parts.hostname, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port)


_MAX_PORT = 65535
_TRITON_URL_FORM = "http://HOST:HTTP_PORT[?grpc_port=N&metrics_port=N]"


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    known = {(ENV_PREFIX + name).upper() for group in _GROUPS.values() for name in group.model_fields}
    unknown = sorted(name for name in environment if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)
    if unknown:
        raise StartupError(f"unknown setting {', '.join(unknown)}; `tidegate config show` lists the ones there are")


def _describe(error: Mapping[str, Any]) -> str:
    name = str(error["loc"][0]) if error["loc"] else "settings"
    flag = "--" + name.replace("_", "-")
    return f"{flag} ({ENV_PREFIX}{name.upper()}): {error['msg']}, got {error['input']!r}"
