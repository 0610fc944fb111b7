"""Starting, dying, restarting and stopping, with the real Triton and Unix sockets beside the ports; nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from control_plane.triton.embedded.command import shm_prefix
from tests.e2e import raw_http
from tests.e2e import tidegate as servers
from tests.e2e.conftest import MODELS, Start
from tests.e2e.tidegate import LONG_S, Tidegate, descendants, living, refused_start, wait_for

ECHO = {"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}


ECHO_ONLY = ("--model-repository", str(MODELS), "--load", "echo")


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


def shared_memory(tidegate: Tidegate) -> set[str]:
    """This one's regions in /dev/shm; another's are none of our business."""
    prefix = shm_prefix(tidegate.state_dir / "triton")
    return {name for name in os.listdir("/dev/shm") if name.startswith(prefix)}


def in_flight(tidegate: Tidegate) -> int:
    page = raw_http.exchange(tidegate.port_of_metrics(), "GET", "/metrics").decode()
    return int(float(next(line.split()[-1] for line in page.splitlines() if line.startswith("tidegate_requests_in_flight "))))


def triton_pid(tidegate: Tidegate) -> int:
    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in living(descendants(tidegate.process.pid))}
    return next(pid for pid, name in names.items() if name == "tritonserver")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of its Unix sockets."""
    return tmp_path_factory.mktemp("sockets")


@pytest.fixture(scope="module")
def serving(folder: Path) -> Iterator[Tidegate]:
    """One whose Triton dies first, and which is killed itself by the last test that has it."""
    running = servers.start(folder / "state", *ECHO_ONLY, *sockets(folder))
    yield running
    running.kill()


def test_triton_that_dies_comes_back_with_its_models(serving: Tidegate) -> None:
    os.kill(triton_pid(serving), signal.SIGKILL)
    answer = b""

    def is_refused() -> bool:
        nonlocal answer
        answer = raw_http.infer(serving.port("http"), "echo", ECHO)
        return raw_http.status(answer) == 503

    wait_for(is_refused, what="a clear 503")
    assert "Triton" in raw_http.error(answer)
    assert b"Retry-After: 1" in answer
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


def test_kill_9_leaves_no_orphan_and_what_it_left_is_replaced(serving: Tidegate, start: Start, folder: Path) -> None:
    below = descendants(serving.process.pid)
    assert shared_memory(serving)
    serving.process.kill()
    serving.process.wait()
    wait_for(lambda: not living(below), what="the end of Triton and its stubs")
    wait_for(lambda: not shared_memory(serving), what="shared memory being freed")
    assert (folder / "http.sock").exists()
    again = start(serving.state_dir, *ECHO_ONLY, *sockets(folder))  # the state folder of a killed one is usable, at once
    assert echo_status(again) == 200
    assert raw_http.status(ask(folder / "http.sock", "GET", "/v2/health/ready")) == 200
    assert again.stop() == 0
    assert not (folder / "http.sock").exists()
    assert not (folder / "grpc.sock").exists()


def test_sigterm_ends_everything_in_order_once_what_is_in_flight_is_answered(start: Start, tmp_path: Path) -> None:
    """And a model that fails to load is reported while the rest is served."""
    running = start(tmp_path, *ECHO_ONLY, "--load", "slow", "--load", "broken", "--load", "nowhere")
    assert echo_status(running) == 200
    assert "broken on purpose" in running.said()
    assert "nowhere" in running.said()
    below = descendants(running.process.pid)
    assert shared_memory(running)
    body = json.dumps({"inputs": [{"name": "SECONDS", "shape": [1, 1], "datatype": "FP32", "data": [1.5]}]}).encode()
    with socket.create_connection(("127.0.0.1", running.port("http")), timeout=LONG_S) as connection:
        connection.sendall(b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        wait_for(lambda: in_flight(running) == 1, what="the request being in flight")
        running.process.send_signal(signal.SIGTERM)
        answer = raw_http.read_answer(connection)
    assert raw_http.status(answer) == 200
    assert b"Connection: close" in answer
    assert running.process.wait(timeout=LONG_S) == 0, running.said()
    assert not living(below)
    assert not shared_memory(running)
    assert not (tmp_path / "endpoints.json").exists()


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


def test_a_state_folder_has_one_holder(tidegate: Tidegate) -> None:
    done = refused_start("--state-dir", str(tidegate.state_dir))
    assert done.returncode == 1
    assert f"in use by tidegate with pid {tidegate.process.pid}" in done.stderr
