"""A server that may open few files only: idle connections fill each port, and health checks, other callers and Triton still get theirs."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from tests.e2e.conftest import MODELS, Start
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate

OPEN_FILES = 256
"""A quarter of the usual soft limit, as the hard one."""

CONNECTIONS = 200
"""More than any port takes with so few files; all ports' together are more than there are files."""

HEALTH = {"http": "/v2/health/ready", "admin": "/version", "metrics": "/metrics"}


@pytest.fixture
def tidegate(start: Start, tmp_path: Path) -> Tidegate:
    return start(tmp_path, "--model-repository", str(MODELS), COMPLETE, "--load", "echo", open_files=OPEN_FILES)


def port_of(tidegate: Tidegate, name: str) -> int:
    return tidegate.port_of_metrics() if name == "metrics" else tidegate.port(name)


def status(port: int, path: str, source: str) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=LONG_S, source_address=(source, 0))
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def infer(tidegate: Tidegate) -> np.ndarray:
    values = np.array([[1, 2]], dtype=np.float32)
    tensor = tritonclient.grpc.InferInput("INPUT0", values.shape, "FP32")
    tensor.set_data_from_numpy(values)
    with tritonclient.grpc.InferenceServerClient(tidegate.address("grpc")) as client:
        return client.infer("echo", [tensor], client_timeout=LONG_S).as_numpy("OUTPUT0")


def test_idle_connections_to_every_port_shut_nobody_out(tidegate: Tidegate) -> None:
    with ExitStack() as idle:
        for name in ("http", "grpc", "admin", "metrics"):
            for _ in range(CONNECTIONS):
                idle.enter_context(socket.create_connection(("127.0.0.1", port_of(tidegate, name)), timeout=LONG_S))
        for name, path in HEALTH.items():
            for source in ("127.0.0.1", "127.0.0.2"):
                assert status(port_of(tidegate, name), path, source) == 200, (name, source)
        assert infer(tidegate).tolist() == [[1.0, 2.0]]
    assert "ports take fewer connections" in tidegate.said()
    assert tidegate.stop() == 0, tidegate.said()
