"""Upstream client of one Triton: its HTTP and gRPC endpoints and its metrics page, as
`triton/ports.Upstream`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from control_plane.core.endpoints import Address, Endpoints, TcpAddress
from control_plane.core.errors import UpstreamUnavailable
from control_plane.protocols.header_forwarding import NO_FORWARDING, HeaderForwarding
from control_plane.triton.adapters.connecting import short_path
from control_plane.triton.adapters.control import ControlClient
from control_plane.triton.adapters.grpc import GrpcClient
from control_plane.triton.adapters.http import HttpClient

_METRICS_TIMEOUT_S = 5.0
_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""TLS context without authorities: Triton's page is plain HTTP, and by default each new client would read all
authorities of this machine, which blocks the event loop for 25 ms.
"""


class UpstreamClient:
    """Upstream client that opens connections when they are first needed; `close` closes them all."""

    def __init__(self, endpoints: Endpoints, *, max_connections: int, forwarding: HeaderForwarding = NO_FORWARDING) -> None:
        self.endpoints = endpoints
        secret = endpoints.control_secret
        self.http = HttpClient(endpoints.http, max_connections=max_connections, control_secret=secret, forwarding=forwarding)
        self.grpc = GrpcClient(endpoints.grpc, control_secret=secret, forwarding=forwarding)
        self.control = ControlClient(endpoints.grpc, control_secret=secret)

    async def metrics_text(self) -> bytes:
        """Return Triton's Prometheus page. The connection is closed after each scrape: an idle one would hold
        up Triton's exit.

        Raises UpstreamUnavailable.
        """
        address = self.endpoints.metrics
        if address is None:
            return b""
        try:
            with _transport(address) as transport:
                async with httpx.AsyncClient(transport=transport, timeout=_METRICS_TIMEOUT_S, trust_env=False) as client:
                    response = await client.get(f"http://{address.authority}/metrics")
            response.raise_for_status()
        except httpx.HTTPError as exc:
            raise UpstreamUnavailable(f"Triton's metrics at {address} cannot be read: {exc}") from exc
        return response.content

    async def close(self) -> None:
        await self.http.close()
        await self.grpc.close()
        await self.control.close()


@contextmanager
def _transport(address: Address) -> Iterator[httpx.AsyncHTTPTransport]:
    if isinstance(address, TcpAddress):
        yield httpx.AsyncHTTPTransport(verify=_NO_AUTHORITIES)
        return
    with short_path(address.path) as path:
        yield httpx.AsyncHTTPTransport(verify=_NO_AUTHORITIES, uds=path)
