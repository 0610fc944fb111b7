"""Limits that the frontends set to their clients, by the settings."""

from __future__ import annotations

from control_plane.auth.access import Access
from control_plane.frontends.grpc.connection import GrpcLimits
from control_plane.frontends.http.limits import HttpLimits
from control_plane.protocols.kserve.body_limits import BodyLimits
from control_plane.settings import GatewaySettings


def body_limits(gateway: GatewaySettings) -> BodyLimits:
    """Limits on one request's body, the same for HTTP and gRPC."""
    return BodyLimits(
        max_body_bytes=gateway.max_body_bytes,
        max_inflate_ratio=gateway.max_inflate_ratio,
        max_json_bytes=gateway.max_json_bytes,
        max_elements=gateway.max_elements,
        max_fields=gateway.max_message_fields,
    )


def http_limits(gateway: GatewaySettings, access: Access) -> HttpLimits:
    """Limits that an HTTP server sets to its clients."""
    return HttpLimits(
        source_share=gateway.source_share,
        trusted_proxies=access.trusted_proxies,
        max_body_bytes=gateway.max_body_bytes,
        max_header_bytes=gateway.max_header_bytes,
        max_connections=gateway.max_connections,
        header_timeout_s=gateway.header_timeout_s,
        body_timeout_s=gateway.body_timeout_s,
        idle_timeout_s=gateway.idle_timeout_s,
    )


def grpc_limits(gateway: GatewaySettings, access: Access) -> GrpcLimits:
    """Limits that a gRPC server sets to its clients."""
    return GrpcLimits(
        source_share=gateway.source_share,
        trusted_proxies=access.trusted_proxies,
        max_message_bytes=gateway.max_body_bytes,
        max_connections=gateway.max_connections,
        max_header_bytes=gateway.max_header_bytes,
        header_timeout_s=gateway.header_timeout_s,
        body_timeout_s=gateway.body_timeout_s,
        idle_timeout_s=gateway.idle_timeout_s,
    )
