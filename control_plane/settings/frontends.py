"""Settings of the doors: where callers connect, over what, and who is let in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from control_plane.settings.fields import Group, NameList, NetworkList, Port, Seconds


def _is_a_pattern_for_both(pattern: str) -> str:
    """For Triton's RE2 and for ours: it has no look-around and no back references. Raises ValueError."""
    if re.search(r"\(\?|\\[1-9]", pattern):
        raise ValueError("groups that begin with (?, and back references, are not for Triton's RE2; expected such as ^x-(tenant|locale)$")
    try:
        re.compile(pattern.encode("ascii"))
    except (re.error, UnicodeEncodeError) as exc:
        raise ValueError(f"{exc}; expected a regular expression for names of headers, such as ^x-(tenant|locale)$") from None
    return pattern


class GatewaySettings(Group):
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

    allowed_hosts: NameList = Field(default_factory=list)
    """Names, such as `tidegate.internal`, that requests may give as `Host` (gRPC: `:authority`) where nobody shows a key. A port on
    loopback without authentication answers to these and to loopback's own, so that no web page reads it whose name resolves to this
    machine. For proxies that pass on the name they were asked by; a name that others can register opens the ports to web pages."""

    max_body_bytes: int = Field(128 * 2**20, ge=1024)
    """Largest request body or message, in bytes. Each is held in memory once; too small refuses image batches."""

    max_inflate_ratio: int = Field(100, ge=1)
    """How many times its size a compressed body or message may become; up to 4 MiB is allowed in any case. Texts become 3 to 10 times,
    zeros 1,000 times. Much more lets a few bytes cost much memory, much less refuses sparse tensors that are compressed."""

    max_json_bytes: int = Field(32 * 2**20, ge=1024)
    """Largest JSON of an inference request, in bytes; binary data behind it counts for `max_body_bytes` alone. Triton needs up to thirty
    times as much memory to read it, and keeps that."""

    max_elements: int = Field(4 * 2**20, ge=1)
    """Elements of a request's tensors that are written out singly: in JSON, or over gRPC in `contents`. Each costs Triton some 60 bytes.
    Binary data (`raw_input_contents`) has no such limit."""

    max_message_fields: int = Field(2**17, ge=64)
    """Fields of one gRPC message; each text in `contents` is one, an array of numbers is one in all. Each costs about a microsecond here
    and some 50 bytes in Triton. Only messages beyond 64 KiB are counted."""

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

    header_forward_pattern: Annotated[str, AfterValidator(_is_a_pattern_for_both)] = ""
    """Regular expression, such as `^x-(tenant|locale)$`, for names of request headers and gRPC metadata that go on to Triton, beside those
    that it reads itself; found anywhere in a name, in any case. The embedded Triton makes request parameters of them; one that others run
    must be started with its own `--http-header-forward-pattern` and `--grpc-header-forward-pattern`. They are part of a kept answer's key:
    what differs with each request keeps it from being answered again. Credentials, cookies and what is a connection's never go on."""

    allow_shared_memory: bool = False
    """Let local clients register shared memory and name it in requests. Triton maps any region that it may open, for any client."""

    max_connections: int = Field(4096, ge=1)
    """Connections to the HTTP port at a time, and as many to the gRPC port; further ones are closed at once. Each costs a few KiB and a
    file descriptor; where the machine allows too few of those (ulimit -n), the ports take fewer."""

    source_share: float = Field(0.75, gt=0, le=1)
    """Part of a port's connections that one source may hold: an address, or an IPv6 network of 64 bits; all of this machine's loopback is
    mostly one. The rest is there for others, such as health checks. Trusted proxies may hold all; 1 lets anybody do that."""

    max_upstream_connections: int = Field(512, ge=1)
    """HTTP connections to one Triton, of which one model gets half at most; requests beyond wait. Triton's eight threads share them."""

    max_in_flight_per_model: int = Field(64, ge=1)
    """Requests of one model at Triton at a time, where authentication is on, while one tenant uses it. Fewer fill batches worse.
    Also the most that there ever are: set no higher than the next, a tenant within its share waits in line like a flood."""

    max_in_flight_per_shared_model: int = Field(16, ge=1)
    """The same while several tenants use it, at most: it is halved as long as that costs no throughput, down to 2, and the next is the
    tenant's whose turn it is. Beyond it come requests of tenants that keep to their share, as many again at most. What is at Triton nobody
    overtakes: more fill batches better, for longer waits beside a flood (64: the text encoder does half more, and takes thrice as long)."""

    max_metric_models: int = Field(1000, ge=1)
    """Models, and tenants, that metrics tell apart at a time; further ones are counted together, as `(other)`. Each costs the metrics page
    up to 4 KB and every scrape some 50 us."""

    request_timeout_s: Seconds = 30.0
    """Deadline in seconds of a request that names none (header `tidegate-timeout-ms`, or gRPC's own)."""

    drain_timeout_s: float = Field(4.0, ge=0, allow_inf_nan=False)
    """Seconds that requests in flight may go on after SIGTERM; with Triton's own exit it stays under ten."""


class TlsSettings(Group):
    """TLS on all four ports. Changed files are taken up within seconds, or at SIGHUP, by new connections."""

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


class AuthenticationSettings(Group):
    """Who is let in: API keys, and tokens (JWTs) where `jwks_url` is given."""

    authentication: bool = False
    """Demand a key or token on every port, but for health and version. Off, everybody who connects may do everything."""

    trusted_proxies: NetworkList = Field(default_factory=list)
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


class AdminSettings(Group):
    """The FastAPI admin API."""

    admin_host: str = "127.0.0.1"
    """Address of the admin API. Whoever reaches it can load models, which is code execution."""

    admin_port: Port = 8080
    """0 chooses a free one."""

    admin_max_connections: int = Field(128, ge=1)
    """Connections to the admin API at a time, and as many to the metrics page; further ones are closed at once. Too few let monitors
    keep administrators out; all of them are kept in reserve, whatever the data ports hold."""

    api_key: SecretStr | None = Field(None, exclude=True)
    """Key or token that the commands which talk to a running `tidegate` show it; `serve` has no use for it, nor have its workers.
    As a variable (`TIDEGATE_API_KEY`) only: other users of a machine see the arguments of its processes."""
