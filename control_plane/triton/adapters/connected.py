"""Upstream client of one Triton: its HTTP and gRPC endpoints and its metrics page, as
`triton/ports.Upstream`.
"""

from __future__ import annotations

from control_plane.core.endpoints import Endpoints
from control_plane.core.errors import ControlPlaneError
from control_plane.host.network.tls import GRPC, HTTP
from control_plane.protocols.header_forwarding import NO_FORWARDING, HeaderForwarding
from control_plane.triton.adapters.control import ControlClient
from control_plane.triton.adapters.credentials import tls_context
from control_plane.triton.adapters.grpc.client import GrpcClient
from control_plane.triton.adapters.http.client import OPENED_TOGETHER, HttpClient
from control_plane.triton.adapters.liveness import HEALTH_LIVE, LivenessProbeClient

_LIVE_TIMEOUT_S = 1.0


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

    async def is_serving(self) -> bool:
        return await self.control.is_live() and await self._is_live_over_http()

    async def metrics_text(self) -> bytes:
        """Return Triton's Prometheus page. The connection is closed after each scrape: an idle one would hold
        up Triton's exit.

        Raises UpstreamUnavailable.
        """
        address = self.endpoints.metrics
        if address is None:
            return b""
        # Imported here: httpx takes a quarter of the start of a worker, which reads no page. A gateway has it from its start.
        from control_plane.triton.adapters.metrics_page import read_metrics

        return await read_metrics(address, self._metrics_tls, self.endpoints.credentials.headers)

    async def _is_live_over_http(self) -> bool:
        try:
            return (await self.http.send(HEALTH_LIVE, timeout_s=_LIVE_TIMEOUT_S)).status == 200
        except ControlPlaneError:
            return False

    async def close(self) -> None:
        await self.http.close()
        await self.grpc.close()
        await self.control.close()
        await self.liveness.close()
