"""What processes import before they are ready, at each start of theirs, whether they need it or not."""

from __future__ import annotations

import subprocess
import sys

import pytest

DATA_PLANE = ("control_plane.embeddings", "control_plane.fleet.routing", "control_plane.frontends", "control_plane.inference.inference")


@pytest.mark.parametrize(
    ("process", "unwanted"),
    [
        # It stands beside Triton on every host, in at most 80 MiB: they took 24 MiB of 92.
        pytest.param(
            "control_plane.__main__, control_plane.app.node",
            (*DATA_PLANE, "fastapi", "numpy", "redis", "tritonclient.grpc", "uvicorn"),
            id="node",
        ),
        # They took a tenth of a gateway's start; who configures one of them imports it then. FastAPI took another third: the admin
        # API is made beside the start of Triton.
        pytest.param(
            "control_plane.__main__, control_plane.app.gateway.application",
            (
                "control_plane.admin.api",
                "control_plane.operator",
                "fastapi",
                "starlette",
                "aio_pika",
                "cryptography",
                "fsspec",
                "jwt",
                "opentelemetry.exporter",
                "opentelemetry.sdk",
                "redis",
                "tritonclient.grpc",
            ),
            id="gateway",
        ),
        # Each took a tenth to a quarter of the start of a worker, which there may be one of for each core.
        pytest.param(
            "control_plane.app.worker_program",
            ("aio_pika", "cryptography", "fastapi", "httpx", "jwt", "opentelemetry", "prometheus_client", "redis", "tritonclient.grpc"),
            id="worker",
        ),
        # They took a quarter of the time of `tidegate get`, `apply`, `diff` and `delete`.
        pytest.param(
            "control_plane.__main__, control_plane.admin.declared.kinds, control_plane.admin.client",
            ("fastapi", "starlette", "opentelemetry"),
            id="commands",
        ),
    ],
)
def test_a_process_imports_nothing_that_it_may_never_need(process: str, unwanted: tuple[str, ...]) -> None:
    program = f"import sys, {process}; print(*(each for each in {unwanted} if each in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "\n"
