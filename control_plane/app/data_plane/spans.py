"""Makes the exporter of spans of sampled requests, if an OpenTelemetry collector is configured."""

from __future__ import annotations

from control_plane.core.errors import StartupError
from control_plane.settings import GatewaySettings
from control_plane.telemetry.tracing import Spans


def open_spans(gateway: GatewaySettings) -> Spans | None:
    """Make the exporter to `otlp_endpoint`; None without one. Raises StartupError: its packages are missing."""
    if gateway.otlp_endpoint is None:
        return None
    try:
        # The import takes time and memory, and most installations have no such package.
        from control_plane.telemetry.adapters.otlp import open_otlp_spans
    except ImportError as exc:
        raise StartupError(
            f"--otlp-endpoint needs a package that is missing ({exc}): `make extras`, or the extra `tidegate[otel]`, installs it"
        ) from exc
    return open_otlp_spans(gateway.otlp_endpoint)
