"""Client of another region's gateway, as `regions/ports.RegionLink`: another gateway speaks Triton's protocol, so Triton's own
clients reach it. It never retries."""

from __future__ import annotations

from dataclasses import replace

from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.errors import UpstreamUnavailable
from control_plane.host.network.tls import GRPC, HTTP
from control_plane.protocols.grpc import GrpcHead
from control_plane.protocols.header_forwarding import HOP_FIELD, GatewayForwarding
from control_plane.protocols.http1 import HttpRequest
from control_plane.protocols.http2.headers import size_of
from control_plane.regions.domain.region import Region
from control_plane.triton.adapters.credentials import tls_context
from control_plane.triton.adapters.grpc.client import GrpcClient
from control_plane.triton.adapters.http.client import HttpClient

_MAX_CONNECTIONS = 256
"""Connections over HTTP, each with one request: as many as `regions/domain/window` lets out at most."""
_MAX_PROBE_BYTES = 64 * 1024
_CONNECT_TIMEOUT_S = 1.0
"""As long as a probe may take: behind a firewall that drops what comes, requests would wait for their whole time."""
_SILENT_S = 5.0
"""Time after which a gRPC connection that answers no ping is closed. A probe's would not do: a ping waits behind what is sent, up
to 4 MiB."""
_READY = HttpRequest(b"GET", b"/v2/health/ready")


class RegionClient:
    """Client that opens connections when they are first needed."""

    def __init__(self, origin: str, region: Region, *, forwards: str, max_answer_bytes: int) -> None:
        """`origin` is this gateway's region; `forwards` the pattern of header fields that models see;
        `max_answer_bytes` bounds what an answer takes of memory here. Raises StartupError: a file of the region's credentials
        cannot be used."""
        passes = GatewayForwarding(GatewayForwarding.of(forwards).pattern)
        hop = ((HOP_FIELD.decode(), origin),)
        where = f"--regions-file: region {region.name}: "
        http_tls = tls_context(region.http, HTTP, setting=where)
        grpc_tls = tls_context(region.grpc, GRPC, setting=where)
        self.http = HttpClient(
            region.http,
            max_connections=_MAX_CONNECTIONS,
            tls=http_tls,
            headers=hop,
            forwarding=passes,
            max_answer_bytes=max_answer_bytes,
            connect_timeout_s=_CONNECT_TIMEOUT_S,
        )
        self.grpc = GrpcClient(
            region.grpc,
            tls=grpc_tls,
            headers=hop,
            forwarding=passes,
            max_answer_bytes=max_answer_bytes,
            connect_timeout_s=_CONNECT_TIMEOUT_S,
        )
        self._probes = HttpClient(region.http, max_connections=1, tls=http_tls, headers=hop, max_answer_bytes=_MAX_PROBE_BYTES)
        self._heads = BoundedCache[GrpcHead, GrpcHead]()

    def head_for(self, head: GrpcHead) -> GrpcHead:
        """See `triton/ports.RegionUpstream`. Its timeout only says that there is one: each call has its own."""
        found = self._heads.get(head)
        if found is None:
            shown = ((b"authorization", head.authorization), (b"x-api-key", head.api_key))
            fields = tuple((name, value.encode("latin-1")) for name, value in shown if value is not None)
            found = replace(head, metadata=(*head.metadata, *fields), timeout_s=1.0)
            self._heads.keep(head, found, size_bytes=2 * size_of(found.metadata))
        return found

    async def probe(self, *, timeout_s: float) -> None:
        """See `regions/ports.RegionLink.probe`. It looks after the connections of gRPC, too."""
        self.grpc.keep_alive(_SILENT_S)
        try:
            answer = await self._probes.send(_READY, timeout_s=timeout_s)
        except UpstreamUnavailable as exc:
            raise UpstreamUnavailable(str(exc).replace("Triton", "its gateway")) from exc
        if answer.status != 200:
            raise UpstreamUnavailable(f"it says that it is not ready (HTTP {answer.status})")

    async def close(self) -> None:
        await self.http.close()
        await self.grpc.close()
        await self._probes.close()
