"""Every setting of `tidegate serve`, parsed once; each is also an environment variable `TIDEGATE_<NAME>`.

Built by the command line and handed on by group. Unknown `TIDEGATE_` variables are errors, so that a misspelt one
never passes for a default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import BeforeValidator, ByteSize, Field, SecretStr, ValidationError, field_serializer
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from control_plane.domain.cpus import parse_cpus
from control_plane.domain.endpoints import TritonEndpoints
from control_plane.domain.errors import StartupError

PROJECT_ROOT = Path(__file__).resolve().parent.parent
ENV_PREFIX = "TIDEGATE_"


def _split_commas(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _parse_networks(value: object) -> object:
    parts = _split_commas(value)
    return [ip_network(str(part)) for part in parts] if isinstance(parts, list) else parts


def _parse_cpus(value: object) -> object:
    return parse_cpus(value) if isinstance(value, str) else value


def _parse_parameters(value: object) -> object:
    """`MODEL:KEY=VALUE` by model and key, both of which may have dots."""
    if not isinstance(value, str | list):
        return value
    parameters: dict[str, dict[str, str]] = {}
    for entry in value.split(",") if isinstance(value, str) else value:
        name, equals, setting = str(entry).strip().partition("=")
        model, colon, key = name.partition(":")
        if not (model and colon and key and equals):
            raise ValueError(f"{entry!r} is no MODEL:KEY=VALUE, such as text_encoder:variant=fp32")
        parameters.setdefault(model, {})[key] = setting
    return parameters


Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NameList = Annotated[list[str], NoDecode, BeforeValidator(_split_commas)]
PathList = Annotated[list[Path], NoDecode, BeforeValidator(_split_commas)]
ModelParameters = Annotated[dict[str, dict[str, str]], NoDecode, BeforeValidator(_parse_parameters)]
NetworkList = Annotated[list[IPv4Network | IPv6Network], NoDecode, BeforeValidator(_parse_networks)]
CpuList = Annotated[tuple[int, ...], NoDecode, BeforeValidator(_parse_cpus)]


class _Group(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)


class GatewaySettings(_Group):
    """The data plane: where Triton's clients connect."""

    host: str = "127.0.0.1"
    """Address of the HTTP, gRPC and metrics ports. Anything beyond loopback needs authentication (`tls_client_ca`)
    and is refused without."""

    http_port: Port = 8000
    """Triton's own default, so that clients need no change; 0 chooses a free one."""

    grpc_port: Port = 8001
    """Triton's own default; 0 chooses a free one."""

    metrics_port: Port = 8002
    """Triton's own default; 0 chooses a free one."""

    http_socket: Path | None = None
    """Unix socket that answers HTTP beside the port, for clients on this machine: only this user can open it. Never TLS."""

    grpc_socket: Path | None = None
    """The same for gRPC."""

    max_body_bytes: int = Field(128 * 2**20, ge=1024)
    """Largest request body or message, in bytes. Each is held in memory once; too small refuses image batches."""

    max_header_bytes: int = Field(16 * 2**10, ge=1024)
    """Largest request head, in bytes; one line of it may have 8000, since Triton closes the connection over a longer one."""

    max_buffered_bytes: int = Field(2**30, ge=1024)
    """Bytes of request bodies held at a time, over all connections of both doors; bodies up to 64 KiB do not count.
    Requests beyond wait or are refused with 503; below `max_body_bytes` the largest bodies never fit."""

    header_timeout_s: Seconds = 10.0
    """Seconds a request head may take from its first byte. More lets slow clients hold connections."""

    body_timeout_s: Seconds = 60.0
    """Seconds a request body may make no progress at all. Less cuts off clients on bad links."""

    idle_timeout_s: float = Field(300.0, ge=0, allow_inf_nan=False)
    """Seconds a connection may be kept without a request; 0 is for ever, as Triton has it."""

    allow_shared_memory: bool = False
    """Let local clients register shared memory and name it in requests. Triton maps any region that it may open, for any client."""

    max_connections: int = Field(4096, ge=1)
    """HTTP connections at a time; further ones are closed at once. Each costs a few KiB and a file descriptor."""

    max_upstream_connections: int = Field(512, ge=1)
    """HTTP connections to one Triton, of which one model gets half at most; requests beyond wait. Triton's eight threads share them."""

    max_in_flight_per_model: int = Field(64, ge=1)
    """Requests of one model at Triton at a time, where authentication is on, while one tenant uses it. Fewer fill batches worse.
    Also the most that there ever are: set no higher than the next, a tenant within its share waits in line like a flood."""

    max_in_flight_per_shared_model: int = Field(16, ge=1)
    """The same while several tenants use it, at most: it is halved as long as that costs no throughput, down to 2, and the next is the
    tenant's whose turn it is. Beyond it come requests of tenants that keep to their share, as many again at most. What is at Triton nobody
    overtakes: more fill batches better, for longer waits beside a flood (64: the text encoder does half more, and takes thrice as long)."""

    request_timeout_s: Seconds = 30.0
    """Deadline in seconds of a request that names none (header `tidegate-timeout-ms`, or gRPC's own)."""

    drain_timeout_s: float = Field(4.0, ge=0, allow_inf_nan=False)
    """Seconds that requests in flight may go on after SIGTERM; with Triton's own exit it stays under ten."""


class TlsSettings(_Group):
    """TLS on the HTTP, gRPC and metrics ports. Changed files are taken up within seconds, or at SIGHUP, by new connections."""

    tls_certificate: Path | None = None
    """PEM file of the server's certificate and what leads from it to its root; turns TLS on. Needs `tls_key`."""

    tls_key: Path | None = None
    """PEM file of its private key, without a passphrase."""

    tls_client_ca: Path | None = None
    """PEM file of the authorities whose client certificates are accepted. Every client must then show one, which counts as
    authentication."""

    @property
    def tls_is_on(self) -> bool:
        return self.tls_certificate is not None


class AuthenticationSettings(_Group):
    """Who is let in: API keys, and tokens (JWTs) where `jwks_url` is given."""

    authentication: bool = False
    """Demand a key or token on every port, but for health and version. Off, everybody who connects may do everything."""

    trusted_proxies: NetworkList = []
    """Networks, such as `10.0.0.0/8`, of proxies whose `x-forwarded-for` is believed: sources of failed attempts are told apart by it.
    Too wide lets callers choose their address; without a proxy that is there, all its callers are slowed for one."""

    jwks_url: str = ""
    """Where the issuer publishes the public keys of its tokens: HTTPS, or HTTP on loopback. Read every five minutes, and when a token
    names an unknown key; after an hour without success tokens are refused. Empty: API keys only."""

    jwt_issuer: str = ""
    """The claim `iss` of every token. Needed with `jwks_url`."""

    jwt_audience: str = ""
    """What the claim `aud` must be or contain, so that tokens meant for other services are refused. Needed with `jwks_url`."""

    jwt_tenant_claim: str = Field("tenant", min_length=1)
    """The claim that names the tenant, which must exist here."""

    jwt_scope_claim: str = Field("scope", min_length=1)
    """The claim with the scopes, as a list or in one text with spaces between; words that are no scopes of ours are passed over."""


class AdminSettings(_Group):
    """The FastAPI admin API."""

    admin_host: str = "127.0.0.1"
    """Address of the admin API. Whoever reaches it can load models, which is code execution."""

    admin_port: Port = 8080
    """0 chooses a free one."""

    api_key: SecretStr | None = Field(None, exclude=True)
    """Key or token that the commands which talk to a running `tidegate` show it; `serve` has no use for it, nor have its workers.
    As a variable (`TIDEGATE_API_KEY`) only: other users of a machine see the arguments of its processes."""


class TritonSettings(_Group):
    """The Triton behind the gateway, embedded or attached."""

    model_repository: PathList = [PROJECT_ROOT / "model_repository", PROJECT_ROOT / "ensembles"]
    """Folders whose subfolders are models. A name in two of them is an error."""

    model_store: NameList = []
    """Where more models come from when they are wanted: folders, or such as `s3://BUCKET/PREFIX`, whose subfolders are models. Credentials
    are the provider's own (`AWS_...` variables, its files, roles), never in the URL. A model of `model_repository` hides one here."""

    warm_dir: Path | None = None
    """Folder on this machine, on disk or in a memory file system, that holds what was fetched of `model_store`; one `tidegate` each.
    Not given: `warm` in the state folder."""

    warm_bytes: ByteSize = ByteSize(64 * 2**30)
    """Bytes that it may hold, such as `200GiB`; what is worth least is removed for what is wanted. It must hold all models that are loaded
    or being loaded at a time, and less than that makes loads fail."""

    load: NameList | None = None
    """Models loaded at start; `*` is all. One that fails is reported and the rest is served.
    Not given: `text_embedding` from the project's own repositories, nothing from others' or into an attached Triton."""

    model_parameter: ModelParameters = {}
    """`MODEL:KEY=VALUE`, over the `parameters` in a model's configuration: `text_encoder:variant=fp32` serves that variant.
    For the embedded Triton; a value with a comma needs the option, which is repeatable."""

    triton_url: str = ""
    """Attach to a running Triton instead: `http://HOST:HTTP_PORT[?grpc_port=N&metrics_port=N]`; the others default to the next two.
    Several, with commas between, are a fleet; each must be able to load every model, and nobody else may load there."""

    model_config_name: str = "auto"
    """Which `configs/<name>.pbtxt` of a model Triton uses; `auto` is `gpu` where an NVIDIA device is present, else the plain config."""

    lock_model_control: bool = True
    """Whether the embedded Triton lists, loads and unloads models for the gateway only. Off, whoever is on this machine may use its
    repository API straight, so nobody knows what is loaded and no answers are kept."""

    load_timeout_s: Seconds = 300.0
    """Deadline of one load, in seconds. Triton cannot cancel a load; past this it is reported as failed."""

    start_timeout_s: Seconds = 60.0
    """Seconds a started Triton may take to become live. Two is usual; a GPU's first start takes longer."""

    triton_cpus: CpuList = ()
    """CPUs that the embedded Triton and its stubs run on, such as `2-7`; not given: all. Fewer than its models' threads makes it slow."""

    model_cpus: CpuList = ()
    """CPUs that the instances of models run on (Triton's host policy `cpu`), a range such as `1-7`; not given: those of Triton."""

    cache_dir: Path = PROJECT_ROOT / ".cache"
    """Holds the downloaded wheels and the unpacked Triton."""

    python_backends: Path = PROJECT_ROOT / "python_backends"
    """Our Python-based backends."""


class FleetSettings(_Group):
    """Several Tritons, and more models than they have memory for."""

    servers: int = Field(1, ge=1, le=64)
    """Embedded Tritons, each a process of its own with a repository of its own. More than one is a fleet: a model is loaded where and
    when it is asked for. Each takes some 100 MB without any model."""

    memory_budget: Annotated[ByteSize, Field(gt=0)] | None = None
    """Bytes of models that each server holds at a time, such as `2GiB`; turns on loading on demand, and evicting for it. Triton itself is
    not in it. Not given: no bound, and with one server nothing is loaded but what is asked for by `load`."""

    load_wait_s: Seconds = 30.0
    """Seconds that a request may wait for its model's load, within its own deadline. One that would wait longer is refused with 503 and
    the expected time in `Retry-After`."""

    @property
    def is_on(self) -> bool:
        return self.servers > 1 or self.memory_budget is not None


class ProcessSettings(_Group):
    """The process itself."""

    state_dir: Path = PROJECT_ROOT / ".state"
    """Everything a run writes: the managed repository, Triton's log, `endpoints.json`. One running `tidegate` each."""

    workers: int = Field(1, ge=1, le=256)
    """Processes that answer the data ports. One serves some ten thousand small requests a second; more take CPU from Triton."""

    gateway_cpus: CpuList = ()
    """CPUs that the data plane runs on, such as `0` or `0-3`: of N workers each takes every Nth of the list. Not given: all."""

    log_format: Literal["console", "json"] = "console"
    """`json` writes one object per line, for log collectors."""


class StateSettings(_Group):
    """What must be remembered: keys, tenants, routes, prices, and what was used."""

    state_url: SecretStr | None = None
    """Redis that several gateways share, `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]` or `rediss://` for TLS; never the one of a
    cache: it must have `maxmemory-policy noeviction` and `appendonly yes`. When its machine loses power, what it was told in the last
    second is lost, unless it has `appendfsync always`. Not given: SQLite files in `state_dir`, for one gateway."""

    @field_serializer("state_url", when_used="json")
    def _with_password(self, url: SecretStr | None) -> str | None:
        """For `to_plain`; whatever is shown goes through `effective`."""
        return url.get_secret_value() if url is not None else None


class UsageSettings(_Group):
    """What is written down of each request."""

    usage_sums: int = Field(100_000, ge=1000)
    """Sums that wait to be added to the usage store, one for each tenant, model and day, of some 350 bytes. While there are so many,
    requests of further ones are served, not metered, and counted as dropped. Less than are in use in half a second loses some always."""

    request_log: Path | None = None
    """File that gets a JSON line for each request. One that was renamed is opened anew within a second, as logrotate wants it.
    Not given: there is none."""


class CacheSettings(_Group):
    """The response cache, for models whose configuration or route says that equal requests have equal answers."""

    cache_bytes: int = Field(256 * 2**20, ge=0, le=2**40)
    """Bytes of answers held in this gateway's memory, of all its workers together; each takes 576 beside its own, so that less than some
    thousand for each worker keeps next to nothing. 0 keeps none anywhere, also not at `cache_url`."""

    cache_entry_bytes: int = Field(2**20, ge=1)
    """Largest answer that is kept. Larger ones push out many small ones, and hold up everybody while they travel to `cache_url`."""

    cache_ttl_s: Seconds = 3600.0
    """Seconds an answer is kept at most, where its route does not say. Reloads and purges hold at once whatever this is."""

    cache_url: SecretStr | None = None
    """Redis that gateways share as a second level, `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]` or `rediss://`; never the one of
    `state_url`: give it a `maxmemory` and `maxmemory-policy allkeys-lfu` or `allkeys-lru`. Not given: each gateway keeps its own only."""

    @field_serializer("cache_url", when_used="json")
    def _with_password(self, url: SecretStr | None) -> str | None:
        """For `to_plain`; whatever is shown goes through `effective`."""
        return url.get_secret_value() if url is not None else None


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it, by group."""

    process: ProcessSettings
    state: StateSettings
    gateway: GatewaySettings
    tls: TlsSettings
    authentication: AuthenticationSettings
    admin: AdminSettings
    triton: TritonSettings
    fleet: FleetSettings
    usage: UsageSettings
    cache: CacheSettings


_GROUPS: dict[str, type[_Group]] = {
    "process": ProcessSettings,
    "state": StateSettings,
    "gateway": GatewaySettings,
    "tls": TlsSettings,
    "authentication": AuthenticationSettings,
    "admin": AdminSettings,
    "triton": TritonSettings,
    "fleet": FleetSettings,
    "usage": UsageSettings,
    "cache": CacheSettings,
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
        raise StartupError("; ".join(_describe(error, given) for error in exc.errors())) from exc
    return Settings(**groups)


def effective(settings: Settings) -> dict[str, object]:
    """Every setting by name with its value in force, secrets masked."""
    return {name: value if not isinstance(value, SecretStr) else "********" for key in _GROUPS for name, value in getattr(settings, key)}


def to_plain(settings: Settings) -> dict[str, Any]:
    """For another process of ours, as what JSON can hold; unlike `effective`, with secrets."""
    return {key: getattr(settings, key).model_dump(mode="json") for key in _GROUPS}


def from_plain(plain: Mapping[str, Any]) -> Settings:
    """What `to_plain` was given; the environment has no say."""
    groups: dict[str, Any] = {key: group(**plain[key]) for key, group in _GROUPS.items()}
    return Settings(**groups)


def parse_triton_urls(urls: str) -> list[TritonEndpoints]:
    """Each of `urls`, which have commas between them. Raises StartupError, also for one that is there twice."""
    found = [parse_triton_url(url.strip()) for url in urls.split(",") if url.strip()]
    if len({(each.host, each.grpc_port) for each in found}) < len(found):
        raise StartupError(f"--triton-url {urls!r} names a Triton twice")
    return found


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


def _describe(error: Mapping[str, Any], given: Mapping[str, object]) -> str:
    name = str(error["loc"][0]) if error["loc"] else "settings"
    where = "--" + name.replace("_", "-") if name in given else ENV_PREFIX + name.upper()  # not every setting has a flag
    return f"{where}: {error['msg'].removeprefix('Value error, ')}, got {error['input']!r}"
