"""One connected Triton: its HTTP and gRPC endpoints and its metrics page, as `ports.Upstream`."""

from __future__ import annotations

import httpx

from control_plane.adapters.triton_grpc import TritonGrpc
from control_plane.adapters.triton_http import TritonHttp
from control_plane.adapters.triton_http2 import TritonHttp2
from control_plane.domain.endpoints import TritonEndpoints, authority
from control_plane.domain.errors import UpstreamUnavailable

_METRICS_TIMEOUT_S = 5.0


class Triton:
    """Opens connections when they are first needed; `close` closes them all."""

    def __init__(self, endpoints: TritonEndpoints, *, max_connections: int) -> None:
        self.endpoints = endpoints
        host, secret = endpoints.host, endpoints.control_secret
        self.http = TritonHttp(host, endpoints.http_port, max_connections=max_connections, control_secret=secret)
        self.grpc = TritonHttp2(host, endpoints.grpc_port, control_secret=secret)
        self.control = TritonGrpc(host, endpoints.grpc_port, control_secret=secret)

    async def metrics_text(self) -> bytes:
        """Triton's Prometheus page; its connection is closed after each scrape, or it would hold up Triton's exit."""
        if self.endpoints.metrics_port is None:
            return b""
        url = f"http://{authority(self.endpoints.host, self.endpoints.metrics_port)}/metrics"
        try:
            async with httpx.AsyncClient(timeout=_METRICS_TIMEOUT_S, trust_env=False) as client:
                response = await client.get(url)
                response.raise_for_status()
        except httpx.HTTPError as exc:
            raise UpstreamUnavailable(f"Triton's metrics at {url} cannot be read: {exc}") from exc
        return response.content

    async def close(self) -> None:
        await self.http.close()
        await self.grpc.close()
        await self.control.close()
