"""Makes clients of Tritons by the settings, for gateways, workers and nodes. Imports nothing of the data plane."""

from __future__ import annotations

from control_plane.core.endpoints import Endpoints
from control_plane.protocols.header_forwarding import HeaderForwarding
from control_plane.settings import GatewaySettings
from control_plane.triton.adapters.connected import UpstreamClient


def connect(gateway: GatewaySettings, endpoints: Endpoints) -> UpstreamClient:
    """Make this process's client of one Triton."""
    return UpstreamClient(endpoints, max_connections=gateway.max_upstream_connections, forwarding=forwarding_of(gateway))


def forwarding_of(gateway: GatewaySettings) -> HeaderForwarding:
    """Return which headers of requests Triton gets."""
    return HeaderForwarding.of(gateway.header_forward_pattern)
