"""Upstream client of one Triton: its HTTP and gRPC endpoints and its metrics page, as
`triton/ports.Upstream`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from control_plane.concurrency.used_connection import UsedConnection
from control_plane.core.endpoints import Address, Endpoints, TcpAddress
from control_plane.core.errors import UpstreamUnavailable
from control_plane.host.tls import GRPC, HTTP
from control_plane.protocols.header_forwarding import NO_FORWARDING, HeaderForwarding
from control_plane.triton.adapters.connecting import short_path
from control_plane.triton.adapters.control import ControlClient
from control_plane.triton.adapters.credentials import tls_context
from control_plane.triton.adapters.grpc import GrpcClient
from control_plane.triton.adapters.http import OPENED_TOGETHER, HttpClient
from control_plane.triton.adapters.liveness import LivenessProbeClient

_METRICS_TIMEOUT_S = 5.0
_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""TLS context without authorities, for pages over plain HTTP: by default each new client would read all
authorities of this machine, which blocks the event loop for 25 ms.
"""


class UpstreamClient:
    """Upstream client that opens connections when they are first needed; `close` closes them all."""

    def __init__(self, endpoints: Endpoints, *, max_connections: int, forwarding: HeaderForwarding = NO_FORWARDING) -> None:
        """Raises StartupError: a file of the endpoints' credentials cannot be used."""
        self.endpoints = endpoints
        secret, credentials, headers = endpoints.control_secret, endpoints.credentials, endpoints.credentials.headers
        # Read once: files that are renewed later may be missing for a moment, also when the probe connects anew.
        http_tls, grpc_tls = tls_context(endpoints.http, HTTP), tls_context(endpoints.grpc, GRPC)
        self.http = HttpClient(
            endpoints.http,
            max_connections=max_connections,
            control_secret=secret,
            tls=http_tls,
            headers=headers,
            forwarding=forwarding,
            opened_together=OPENED_TOGETHER,
        )
        self.grpc = GrpcClient(endpoints.grpc, control_secret=secret, tls=grpc_tls, headers=headers, forwarding=forwarding)
        self.control = ControlClient(endpoints.grpc, control_secret=secret, credentials=credentials)
        self.liveness = LivenessProbeClient(endpoints, http_tls=http_tls, grpc_tls=grpc_tls)
        self._metrics_tls = http_tls

    async def metrics_text(self) -> bytes:
        """Return Triton's Prometheus page. The connection is closed after each scrape: an idle one would hold
        up Triton's exit.

        Raises UpstreamUnavailable.
        """
        address = self.endpoints.metrics
        if address is None:
            return b""
        try:
            with _transport(address, self._metrics_tls) as transport:
                client = httpx.AsyncClient(transport=transport, timeout=_METRICS_TIMEOUT_S, trust_env=False)
                async with client, UsedConnection() as used:
                    scheme = "http" if self._metrics_tls is None else "https"
                    shown = dict(self.endpoints.credentials.headers)
                    response = await client.get(f"{scheme}://{address.authority}/metrics", headers=shown, extensions=used.trace)
            response.raise_for_status()
        except httpx.HTTPError as exc:
            raise UpstreamUnavailable(f"Triton's metrics at {address} cannot be read: {exc}") from exc
        return response.content

    async def close(self) -> None:
        await self.http.close()
        await self.grpc.close()
        await self.control.close()
        await self.liveness.close()


@contextmanager
def _transport(address: Address, tls: ssl.SSLContext | None) -> Iterator[httpx.AsyncHTTPTransport]:
    if isinstance(address, TcpAddress):
        yield httpx.AsyncHTTPTransport(verify=tls or _NO_AUTHORITIES)
        return
    with short_path(address.path) as path:
        yield httpx.AsyncHTTPTransport(verify=_NO_AUTHORITIES, uds=path)
