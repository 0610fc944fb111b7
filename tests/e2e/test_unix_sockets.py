"""Unix sockets beside the ports of both doors."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.e2e import raw_http
from tests.e2e import tidegate as servers
from tests.e2e.conftest import MODELS, Start
from tests.e2e.tidegate import LONG_S, Tidegate, refused_start, wait_for

ECHO_ONLY = ("--model-repository", str(MODELS), "--load", "echo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sockets")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Tidegate]:
    """The last test that has it kills it."""
    running = servers.start(folder / "state", *ECHO_ONLY, *sockets(folder))
    yield running
    running.process.kill()
    running.process.wait()


def sockets(folder: Path) -> tuple[str, ...]:
    return ("--http-socket", str(folder / "http.sock"), "--grpc-socket", str(folder / "grpc.sock"))


def ask(path: Path, method: str, target: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LONG_S)
        connection.connect(str(path))
        connection.sendall(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        return raw_http.read_answer(connection)


def test_both_doors_answer_on_them_and_take_them_for_local(running: Tidegate, folder: Path) -> None:
    http, over_grpc = folder / "http.sock", folder / "grpc.sock"
    assert running.endpoints["http_socket"] == f"unix:{http}"
    assert running.endpoints["grpc_socket"] == f"unix:{over_grpc}"
    wait_for(lambda: f"unix:{http}" in running.said().replace("\n", ""), what="the table of endpoints")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (http, over_grpc)} == {0o600}

    assert raw_http.status(ask(http, "GET", "/v2/health/ready")) == 200
    assert raw_http.status(ask(http, "POST", "/v2/repository/models/echo/load")) == 200
    with grpc.insecure_channel(f"unix:{over_grpc}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ModelReady(service_pb2.ModelReadyRequest(name="echo"), timeout=LONG_S).ready
        stub.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name="echo"), timeout=LONG_S)
    assert raw_http.status(raw_http.exchange(running.port("http"), "GET", "/v2/health/live")) == 200


def test_a_living_one_is_not_taken_away(running: Tidegate, folder: Path, tmp_path: Path) -> None:
    done = refused_start("--state-dir", str(tmp_path), "--http-socket", str(folder / "http.sock"))
    assert done.returncode == 1
    assert f"--http-socket {folder / 'http.sock'} is taken" in done.stderr
    assert raw_http.status(ask(folder / "http.sock", "GET", "/v2/health/live")) == 200


def test_one_that_a_killed_tidegate_has_left_is_replaced_and_goes_with_the_new_one(running: Tidegate, start: Start, folder: Path) -> None:
    running.process.kill()
    running.process.wait()
    assert (folder / "http.sock").exists()
    again = start(folder / "state", *ECHO_ONLY, *sockets(folder))
    assert raw_http.status(ask(folder / "http.sock", "GET", "/v2/health/ready")) == 200
    assert again.stop() == 0
    assert not (folder / "http.sock").exists()
    assert not (folder / "grpc.sock").exists()
