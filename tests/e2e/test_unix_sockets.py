"""Unix sockets beside the ports of both doors."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.e2e import raw_http
from tests.e2e.conftest import MODELS, Start
from tests.e2e.tidegate import Tidegate, run_cli, wait_for

ECHO_ONLY = ("--model-repository", str(MODELS), "--load", "echo")


@pytest.fixture
def running(start: Start, tmp_path: Path) -> Tidegate:
    return start(tmp_path / "state", *ECHO_ONLY, "--http-socket", str(tmp_path / "http.sock"), "--grpc-socket", str(tmp_path / "grpc.sock"))


def ask(path: Path, method: str, target: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        connection.sendall(f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        return raw_http.read_answer(connection)


def test_both_doors_answer_on_them_and_take_them_for_local(running: Tidegate, tmp_path: Path) -> None:
    http, over_grpc = tmp_path / "http.sock", tmp_path / "grpc.sock"
    assert running.endpoints["http_socket"] == f"unix:{http}"
    assert running.endpoints["grpc_socket"] == f"unix:{over_grpc}"
    wait_for(lambda: f"unix:{http}" in running.said().replace("\n", ""), what="the table of endpoints")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (http, over_grpc)} == {0o600}

    assert raw_http.status(ask(http, "GET", "/v2/health/ready")) == 200
    assert raw_http.status(ask(http, "POST", "/v2/repository/models/echo/load")) == 200
    with grpc.insecure_channel(f"unix:{over_grpc}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ModelReady(service_pb2.ModelReadyRequest(name="echo"), timeout=10).ready
        stub.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name="echo"), timeout=20)
    assert raw_http.status(raw_http.exchange(running.port("http"), "GET", "/v2/health/live")) == 200

    assert running.stop() == 0
    assert not http.exists()
    assert not over_grpc.exists()


def test_a_living_one_is_not_taken_away(running: Tidegate, tmp_path: Path) -> None:
    ports = [part for door in ("http", "grpc", "metrics", "admin") for part in (f"--{door}-port", "0")]
    done = run_cli("serve", "--state-dir", str(tmp_path / "other"), *ports, "--http-socket", str(tmp_path / "http.sock"))
    assert done.returncode == 1
    assert f"--http-socket {tmp_path / 'http.sock'} is taken" in done.stderr
    assert raw_http.status(ask(tmp_path / "http.sock", "GET", "/v2/health/live")) == 200


def test_one_that_a_killed_tidegate_has_left_is_replaced(running: Tidegate, start: Start, tmp_path: Path) -> None:
    running.process.kill()
    running.process.wait(timeout=5)
    assert (tmp_path / "http.sock").exists()
    again = start(tmp_path / "state", *ECHO_ONLY, "--http-socket", str(tmp_path / "http.sock"))
    assert raw_http.status(ask(tmp_path / "http.sock", "GET", "/v2/health/ready")) == 200
    assert again.stop() == 0
