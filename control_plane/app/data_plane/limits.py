"""The frontends' limits on clients by the settings, divided among the processes of a gateway."""

from __future__ import annotations

from typing import Any

from control_plane.auth.access import Access
from control_plane.frontends.common.connection_limits import ConnectionCaps, descriptors_wanted, fit
from control_plane.frontends.grpc.limits import GrpcLimits
from control_plane.frontends.http.limits import HttpLimits
from control_plane.host.open_files import allow_open_files
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.settings import AdminSettings, GatewaySettings


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
    return HttpLimits(max_body_bytes=gateway.max_body_bytes, trusted_proxies=access.trusted_proxies, **_of_connections(gateway))


def grpc_limits(gateway: GatewaySettings, access: Access) -> GrpcLimits:
    """Limits that a gRPC server sets to its clients."""
    return GrpcLimits(max_message_bytes=gateway.max_body_bytes, trusted_proxies=access.trusted_proxies, **_of_connections(gateway))


def _of_connections(gateway: GatewaySettings) -> dict[str, Any]:
    """The settings that are limits of the same name, over both protocols."""
    names = ("max_connections", "max_header_bytes", "header_timeout_s", "body_timeout_s", "idle_timeout_s", "source_share")
    return {name: getattr(gateway, name) for name in names}


def connection_caps(gateway: GatewaySettings, admin: AdminSettings, *, servers: int) -> ConnectionCaps:
    """Connections that each port of this process may have; raises the limit of file descriptors if it can,
    else fits in.
    """
    wanted = ConnectionCaps(gateway.max_connections, admin.admin_max_connections)
    upstream = max(1, servers) * gateway.max_upstream_connections
    return fit(wanted, upstream=upstream, descriptors=allow_open_files(descriptors_wanted(wanted, upstream)))


def share_of(gateway: GatewaySettings, workers: int) -> GatewaySettings:
    """Return the settings with one worker's share of the limits that hold for all workers together."""
    shared = ("max_connections", "max_upstream_connections")
    parts: dict[str, int] = {name: max(1, getattr(gateway, name) // workers) for name in shared}
    # Not a plain share: with less than `max_body_bytes` the largest bodies would fit into no worker.
    parts["max_buffered_bytes"] = max(gateway.max_body_bytes, gateway.max_buffered_bytes // workers)
    return gateway.model_copy(update=parts)
