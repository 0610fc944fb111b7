"""Settings of the frontends (HTTP, gRPC, metrics, admin): addresses, limits, TLS and authentication."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ByteSize, Field, SecretStr, ValidationInfo, field_validator

from control_plane.settings.fields import ByteCount, CollectorUrl, Group, HostList, NetworkList, Port, Seconds, SecretFile, first_line


def _require_re2_pattern(pattern: str) -> str:
    """Return a pattern that Python's `re` and Triton's RE2 both understand. Raises ValueError.

    RE2 has neither look-around nor back references, so they are refused here and not first by Triton.
    """
    if re.search(r"\(\?|\\[1-9]", pattern):
        raise ValueError(
            "Triton's RE2 has no back references, and groups that begin with (? are not supported; expected such as ^x-(tenant|locale)$"
        )
    try:
        re.compile(pattern.encode("ascii"))
    except (re.error, UnicodeEncodeError) as exc:
        raise ValueError(f"{exc}; expected a regular expression for names of headers, such as ^x-(tenant|locale)$") from None
    return pattern


class GatewaySettings(Group):
    """The data plane: the ports to which Triton's clients connect, and the limits on what they send."""

    host: str = "127.0.0.1"
    """Address of the HTTP, gRPC and metrics ports. Any address beyond loopback needs authentication, by API
    keys, tokens or client certificates (`tls_client_ca`); without it the start is refused."""

    http_port: Port = 8000
    """Port of the HTTP API; 0 chooses a free one. The default is Triton's, so that clients need no
    change."""

    grpc_port: Port = 8001
    """Port of the gRPC API; 0 chooses a free one. The default is Triton's."""

    metrics_port: Port = 8002
    """Port of the Prometheus metrics page; 0 chooses a free one. The default is Triton's."""

    http_socket: Path | None = None
    """Unix socket that serves the HTTP API beside the port, for clients on this machine. Only the user who
    runs the gateway can open it; it never uses TLS."""

    grpc_socket: Path | None = None
    """Unix socket that serves the gRPC API, as `http_socket` does for HTTP."""

    allowed_hosts: HostList = Field(default_factory=list)
    """Host names, such as `tidegate.internal`, that a request may carry in `Host` (gRPC: `:authority`) when
    authentication is off. A port on loopback without authentication accepts only these and loopback's own
    names; this stops web pages that reach the port by a name of theirs which resolves to this machine (DNS
    rebinding). Needed behind a proxy that passes on the name it was called by. A name that others can
    register lets their web pages in."""

    max_body_bytes: ByteCount = Field(ByteSize(128 * 2**20), ge=1024)
    """Largest request body or gRPC message, in bytes. Each is held in memory once; too small refuses batches
    of images."""

    max_inflate_ratio: int = Field(100, ge=1)
    """How many times its compressed size a body or message may become; up to 4 MiB is always allowed. Text
    typically becomes 3 to 10 times as large, zeros 1,000 times. Much higher lets a few bytes take much
    memory; much lower refuses compressed sparse tensors."""

    max_json_bytes: ByteCount = Field(ByteSize(32 * 2**20), ge=1024)
    """Largest JSON part of an inference request, in bytes; binary data that follows it counts towards
    `max_body_bytes` only. Triton needs up to thirty times this much memory to parse it, and does not give
    that memory back."""

    max_elements: int = Field(4 * 2**20, ge=1)
    """Most tensor elements that one request may write out one by one: in JSON, or over gRPC in `contents`.
    Each takes some 60 bytes in Triton. Binary data (`raw_input_contents`) is not limited by it."""

    max_message_fields: int = Field(2**17, ge=64)
    """Most fields in one gRPC message: each text in `contents` is a field, an array of numbers is one field
    in all. Each costs about a microsecond here and some 50 bytes in Triton. Messages up to 64 KiB are not
    checked."""

    max_header_bytes: ByteCount = Field(ByteSize(16 * 2**10), ge=1024)
    """Largest request head, in bytes. One header line may have 8,000 bytes in any case, since Triton closes
    the connection over a longer one."""

    max_buffered_bytes: ByteCount = Field(ByteSize(2**30), ge=1024)
    """Bytes of request bodies held in memory at a time, over all HTTP and gRPC connections; bodies up to 64
    KiB do not count. Requests beyond it wait or are refused with 503. Lower than `max_body_bytes`, the
    largest bodies never fit."""

    max_waiting_requests: int = Field(8192, ge=2)
    """Requests that wait at a time for models that are busy, or not loaded yet; their bodies may take half of
    `max_buffered_bytes`, small ones included. With authentication one tenant has half of both. Requests
    beyond are refused with 503, or 429 where it is the tenant's own half. Few refuse a crowd for a model that
    takes long to load; each of many costs some 20 KiB beside its body."""

    header_timeout_s: Seconds = 10.0
    """Seconds that a request head may take from its first byte to its end. More lets slow clients hold
    connections."""

    body_timeout_s: Seconds = 60.0
    """Seconds that a request body may arrive without any progress. Less cuts off clients on bad links."""

    idle_timeout_s: float = Field(300.0, ge=0, allow_inf_nan=False)
    """Seconds that a connection without a request is kept open; 0 keeps it for ever, as Triton does."""

    header_forward_pattern: Annotated[str, AfterValidator(_require_re2_pattern)] = ""
    """Regular expression, such as `^x-(tenant|locale)$`, for the names of request headers and gRPC metadata
    to forward to Triton besides those that Triton reads itself. It may match anywhere in a name, in upper or
    lower case. The embedded Triton turns them into request parameters; a Triton that others run must be
    started with its own `--http-header-forward-pattern` and `--grpc-header-forward-pattern`. Forwarded values
    are part of the cache key: a header that differs with each request makes every lookup a miss. Credentials,
    cookies and headers of the connection itself are never forwarded."""

    allow_shared_memory: bool = False
    """Let clients on this machine register shared memory and use it in requests. Triton maps any region that
    it may open, for any client, so turn it on only where all clients trust each other."""

    max_connections: int = Field(4096, ge=1)
    """Connections to the HTTP port at a time, and as many to the gRPC port; further ones are closed at once.
    Each costs a few KiB and a file descriptor; where the machine allows too few descriptors (`ulimit -n`),
    the ports accept fewer."""

    source_share: float = Field(0.75, gt=0, le=1)
    """Share of a port's connections that one source may hold. A source is an IPv4 address or an IPv6 network
    of 64 bits; all clients on loopback usually count as one. The rest stays free for others, such as health
    checks. Trusted proxies may hold all connections; 1 lets every source do so."""

    max_upstream_connections: int = Field(512, ge=1)
    """HTTP connections to one Triton; requests beyond wait for a connection. The embedded Triton serves them
    with 64 threads; many more connections add little. Without authentication half this number is also the
    limit of requests of one model, over HTTP and gRPC together, that a Triton has at a time; further ones
    wait here. Requests that go on with sequences count apart, up to a quarter of it."""

    max_in_flight_per_model: int = Field(64, ge=1)
    """Requests of one model that Triton has at a time while one tenant uses the model; applies with
    authentication on. Requests that go on with sequences count apart, up to as many. Too few leave Triton's
    batches unfilled. It is also the upper bound while several tenants share the model: if it is not above
    `max_in_flight_per_shared_model`, a tenant within its share has to queue behind the others' requests."""

    max_in_flight_per_shared_model: int = Field(16, ge=1)
    """Requests of one model that Triton has at a time while several tenants share it; free slots go to
    tenants in fair order. The gateway halves this limit, down to 2, as long as that costs no throughput; a
    tenant within its share may exceed it by as much again. A request cannot overtake what Triton already has,
    so a higher limit fills batches better and makes tenants wait longer beside a flood (with 64 the text
    encoder answers half as many again, and takes three times as long)."""

    max_metric_models: int = Field(1000, ge=1)
    """Models, and as many tenants, that have metrics of their own; further ones are counted together as
    `(other)`. Each adds up to 4 KB to the metrics page and some 50 us to every scrape."""

    otlp_endpoint: CollectorUrl | None = None
    """URL of an OpenTelemetry collector that takes OTLP over HTTP, such as `http://localhost:4318`; `/v1/traces` is added where
    it is missing. Each process sends it spans of sampled requests. Header fields with secrets go into
    `OTEL_EXPORTER_OTLP_HEADERS`. Needs the packages of the extra `otel`. Not given: no spans."""

    trace_ratio: float = Field(0.001, ge=0, le=1)
    """Part (0 to 1) of the requests without a `traceparent` that get spans at `otlp_endpoint`; of the others the
    caller's flag decides. At 1 each request costs the gateway some 0.1 ms more."""

    max_prompt_bytes: ByteCount = Field(ByteSize(2**20), ge=1024)
    """Largest call for generated text (`/v1/completions`, `/v1/chat/completions`), and largest prompt that a chat becomes, in
    bytes; a token has some four. Too small refuses long documents; each is held in memory until its answer ends."""

    max_completion_tokens: int = Field(4096, ge=1)
    """Most tokens that one call may have generated; a chat that names no number (`max_completion_tokens`) gets as many. Higher
    lets one caller hold a slot of its model for longer."""

    request_timeout_s: Seconds = 30.0
    """Deadline, in seconds, of a request that names none itself (header `tidegate-timeout-ms`, or gRPC's own
    deadline). Too short cuts off slow models; too long keeps slots for callers that have given up."""

    drain_pause_s: float = Field(2.0, ge=0, allow_inf_nan=False)
    """Seconds between SIGTERM, at which readiness says no, and the moment at which the ports close; until
    then everything is served. It has to be longer than load balancers need to notice: Kubernetes' own
    endpoints take a second or two, a balancer with health checks of its own takes their interval times the
    failures that it waits for. Too short refuses connections that are still sent here; longer only delays the
    exit. Ctrl-C does not pause: nobody balances load to a terminal."""

    drain_timeout_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Seconds that requests in flight may take to finish after the pause; not given: `request_timeout_s`, the
    longest deadline of requests that name none. What is left then is refused with 503 or UNAVAILABLE, and
    everything has ended, Triton included, at most 6 s later. Whoever supervises the process must wait for the
    sum of all three before it kills (Kubernetes: `terminationGracePeriodSeconds`)."""

    @property
    def longest_drain_s(self) -> float:
        """Seconds of `drain_timeout_s`, or what stands in for it."""
        return self.request_timeout_s if self.drain_timeout_s is None else self.drain_timeout_s


class TlsSettings(Group):
    """TLS on all four ports, with files of its own for the admin port where they are given. New connections use changed files
    within seconds, or at once after SIGHUP."""

    tls_certificate: Path | None = None
    """PEM file with the server's certificate and its chain of intermediates; turns TLS on. Needs
    `tls_key`."""

    tls_key: Path | None = None
    """PEM file with the certificate's private key, without a passphrase."""

    tls_client_ca: Path | None = None
    """PEM file with the authorities whose client certificates are accepted. Every client must then show a
    certificate (mutual TLS), which counts as authentication."""

    admin_tls_cert: Path | None = None
    """PEM file with the certificate of the admin port alone, such as one of an authority within the house; turns TLS on
    there, also where the other ports have none. Needs `admin_tls_key`. Not given: the admin port has what all have."""

    admin_tls_key: Path | None = None
    """PEM file with that certificate's private key, without a passphrase."""

    admin_tls_client_ca: Path | None = None
    """PEM file with the authorities whose client certificates the admin port accepts; `tls_client_ca` does not hold there once
    it has a certificate of its own. Callers need a key or token beside it, as ever."""

    @property
    def tls_is_on(self) -> bool:
        return self.tls_certificate is not None

    @property
    def admin_tls_is_on(self) -> bool:
        return self.tls_is_on or self.admin_tls_cert is not None


class AuthenticationSettings(Group):
    """Who may call: holders of API keys, and of tokens (JWTs) where `jwks_url` is given."""

    authentication: bool = False
    """Demand an API key or token of every caller, on every port; only health and version stay open. Off,
    everybody who can connect may do everything."""

    trusted_proxies: NetworkList = Field(default_factory=list)
    """Networks, such as `10.0.0.0/8`, of proxies whose `x-forwarded-for` is believed, so that failed logins
    are counted for the client's address and not for the proxy's. Too wide lets callers invent their address;
    if a proxy is missing here, one client's failed logins slow down everybody behind that proxy."""

    jwks_url: str = ""
    """URL where the token issuer publishes its public keys (JWKS): HTTPS, or HTTP on loopback. It is read
    every five minutes, and when a token names an unknown key; after an hour without success tokens are
    refused. Empty: API keys only."""

    jwt_issuer: str = ""
    """Value that the claim `iss` of every token must have. Needed with `jwks_url`."""

    jwt_audience: str = ""
    """Value that the claim `aud` must be or contain, so that tokens for other services are refused. Needed
    with `jwks_url`."""

    jwt_tenant_claim: str = Field("tenant", min_length=1)
    """Name of the claim that holds the tenant. The tenant must exist here."""

    jwt_scope_claim: str = Field("scope", min_length=1)
    """Name of the claim that holds the scopes, as a list or as one text with spaces; words that are not our
    scopes are ignored."""


class AdminSettings(Group):
    """The admin API: models, keys, tenants, routes, prices, usage and the fleet."""

    admin_host: str = "127.0.0.1"
    """Address of the admin API. Whoever may use it can load models, which means running code."""

    admin_port: Port = 8080
    """Port of the admin API; 0 chooses a free one."""

    admin_max_connections: int = Field(128, ge=1)
    """Connections to the admin API at a time, and as many to the metrics page; further ones are closed at
    once. Their file descriptors are set aside, so that busy data ports cannot take them. Too few let
    monitoring lock administrators out."""

    console: bool = True
    """Serve the web console on the admin port, at `/console`: static files, which show what the admin API answers to the key
    that is typed in."""

    api_key_file: SecretFile | None = Field(None, exclude=True)
    """File whose first line is the `api_key`, ignored where `api_key` is given."""

    api_key: SecretStr | None = Field(None, exclude=True, validate_default=True)
    """API key or token that commands such as `tidegate models` send to a running `tidegate`; `serve` does not
    use it. Settable as a variable (`TIDEGATE_API_KEY`) only, because other users of a machine can read
    command lines."""

    @field_validator("api_key", mode="before")
    @classmethod
    def _from_file(cls, key: object, info: ValidationInfo) -> object:
        return key or first_line(info.data.get("api_key_file"))
