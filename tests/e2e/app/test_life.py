"""Starting, dying and restarting, with the real Triton and Unix sockets beside the ports; nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
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
from tests.e2e.processes import triton_pid
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate, descendants, living, refused_start, shared_memory, wait_for

ECHO = {"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}


ECHO_ONLY = ("--model-repository", str(MODELS), COMPLETE, "--load", "echo")


def sockets(folder: Path) -> tuple[str, ...]:
    return ("--http-socket", str(folder / "http.sock"), "--grpc-socket", str(folder / "grpc.sock"))


def ask(path: Path, method: str, target: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LONG_S)
        connection.connect(str(path))
        connection.sendall(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        return raw_http.read_answer(connection)


def echo_status(tidegate: Tidegate) -> int:
    return raw_http.status(raw_http.infer(tidegate.port("http"), "echo", ECHO))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the gateway's Unix sockets."""
    return tmp_path_factory.mktemp("sockets")


@pytest.fixture(scope="module")
def serving(folder: Path) -> Iterator[Tidegate]:
    """One whose Triton dies first, and which is killed itself by the last test that has it."""
    running = servers.start(folder / "state", *ECHO_ONLY, *sockets(folder))
    yield running
    running.kill()


def test_triton_that_dies_comes_back_with_its_models(serving: Tidegate) -> None:
    killed, answer = 0, b""

    def is_refused() -> bool:
        nonlocal killed, answer
        # A request that comes before the end is noticed waits for the next Triton; on a slow machine that may be there
        # before anybody has looked.
        if raw_http.status(raw_http.exchange(serving.port("http"), "GET", "/v2/health/ready")) == 200:
            if (pid := triton_pid(serving)) != killed:
                killed = pid
                os.kill(pid, signal.SIGKILL)
            return False
        answer = raw_http.infer(serving.port("http"), "echo", ECHO)
        return raw_http.status(answer) == 503

    wait_for(is_refused, what="a clear 503")
    assert "Triton" in raw_http.error(answer)
    assert re.search(rb"\r\nRetry-After: [1-9]", answer)
    assert raw_http.status(raw_http.exchange(serving.port("http"), "GET", "/v2/health/live")) == 200
    wait_for(lambda: echo_status(serving) == 200, what="the restart")


def test_both_frontends_answer_on_unix_sockets_and_take_them_for_local(serving: Tidegate, folder: Path) -> None:
    http, over_grpc = folder / "http.sock", folder / "grpc.sock"
    assert serving.endpoints["http_socket"] == f"unix:{http}"
    assert serving.endpoints["grpc_socket"] == f"unix:{over_grpc}"
    wait_for(lambda: f"unix:{http}" in serving.said().replace("\n", ""), what="the table of endpoints")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (http, over_grpc)} == {0o600}

    assert raw_http.status(ask(http, "GET", "/v2/health/ready")) == 200
    assert raw_http.status(ask(http, "POST", "/v2/repository/models/echo/load")) == 200
    with grpc.insecure_channel(f"unix:{over_grpc}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ModelReady(service_pb2.ModelReadyRequest(name="echo"), timeout=LONG_S).ready
        stub.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name="echo"), timeout=LONG_S)
    assert raw_http.status(raw_http.exchange(serving.port("http"), "GET", "/v2/health/live")) == 200


def test_a_unix_socket_that_somebody_listens_on_is_not_taken_away(serving: Tidegate, folder: Path, tmp_path: Path) -> None:
    done = refused_start("--state-dir", str(tmp_path), "--http-socket", str(folder / "http.sock"))
    assert done.returncode == 1
    assert f"--http-socket {folder / 'http.sock'} is taken" in done.stderr
    assert raw_http.status(ask(folder / "http.sock", "GET", "/v2/health/live")) == 200


def test_a_state_folder_has_one_holder(serving: Tidegate) -> None:
    done = refused_start("--state-dir", str(serving.state_dir))
    assert done.returncode == 1
    assert f"in use by tidegate with pid {serving.process.pid}" in done.stderr


def test_kill_9_leaves_no_orphan_and_what_it_left_is_replaced(serving: Tidegate, start: Start, folder: Path) -> None:
    """And models that fail to load are reported while the rest is served."""
    below = descendants(serving.process.pid)
    assert shared_memory(serving)
    serving.process.kill()
    serving.process.wait()
    wait_for(lambda: not living(below), what="the end of Triton and its stubs")
    wait_for(lambda: not shared_memory(serving), what="shared memory being freed")
    assert (folder / "http.sock").exists()
    failing = ("--load", "broken", "--load", "nowhere")
    again = start(serving.state_dir, *ECHO_ONLY, *failing, *sockets(folder))  # the state folder of a killed one is usable, at once
    assert echo_status(again) == 200
    assert "broken on purpose" in again.said()
    assert "nowhere" in again.said()
    assert raw_http.status(ask(folder / "http.sock", "GET", "/v2/health/ready")) == 200
    assert again.stop() == 0
    assert not (folder / "http.sock").exists()
    assert not (folder / "grpc.sock").exists()


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        pytest.param("--no-such-flag=1", "--no-such-flag=1: Triton has no such flag", id="a flag that Triton does not know"),
        pytest.param("--rate-limit-resource=x", "'<resource_name>:<count>", id="a flag's value that Triton does not take"),
    ],
)
def test_a_flag_that_triton_does_not_take_is_told_in_one_line(tmp_path: Path, argument: str, says: str) -> None:
    done = refused_start("--state-dir", str(tmp_path), "--triton-arg", argument)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
