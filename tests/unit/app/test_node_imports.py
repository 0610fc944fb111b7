"""What the process of `tidegate node` imports: it stands beside Triton on every host, in at most 80 MiB."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys, control_plane.cli, control_plane.cli.node, control_plane.app.node
unwanted = ("control_plane.embeddings", "control_plane.fleet.routing", "control_plane.frontends", "control_plane.inference.inference",
            "fastapi", "numpy", "redis", "tritonclient.grpc", "uvicorn")
print(*(each for each in unwanted if each in sys.modules))
"""


def test_a_node_imports_no_data_plane_and_no_numpy() -> None:
    """They took 24 MiB of 92."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "\n"
