from __future__ import annotations

import sys

import pytest

from control_plane.app.data_plane.spans import open_spans
from control_plane.core.errors import StartupError
from control_plane.settings import GatewaySettings


def test_without_an_endpoint_there_are_none() -> None:
    assert open_spans(GatewaySettings()) is None


def test_without_the_packages_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "control_plane.telemetry.adapters.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(StartupError, match=r"^--otlp-endpoint needs a package that is missing .*tidegate\[otel\]"):
        open_spans(GatewaySettings(otlp_endpoint="http://localhost:4318"))
