"""What `tidegate node` refuses at its start, before anything is bound or started."""

from __future__ import annotations

from pathlib import Path

import pytest

from control_plane.app.node import Node
from control_plane.core.errors import StartupError
from control_plane.settings import load_settings

ATTACH = {"attach": "http://127.0.0.1:8000"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        pytest.param({"triton_url": "http://h:1"}, "leave --triton-url and --servers-file to the gateways", id="a gateway's"),
        pytest.param({"load": "m"}, "--load is for gateways", id="loads"),
        pytest.param({**ATTACH, "triton_arg": ["--rate-limit=off"]}, "--attach: triton_arg would be of a Triton that", id="flags"),
        pytest.param({**ATTACH, "tritonserver": "/opt/t"}, "--attach: tritonserver would be", id="a program to start"),
        pytest.param({**ATTACH, "node_triton_http_port": "9"}, "--attach: node_triton_http_port would be", id="ports to open"),
        pytest.param({"attach": "https://h:1"}, "--attach https://h:1: expected http://HOST:PORT or unix:", id="another host's"),
        pytest.param(
            {"tritonserver": "/nowhere/tritonserver"}, "--tritonserver /nowhere/tritonserver: there is no such file", id="nothing"
        ),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, options: dict[str, object], why: str) -> None:
    with pytest.raises(StartupError, match=why):
        Node(load_settings({"state_dir": str(tmp_path), "node_port": "0", **options}))
