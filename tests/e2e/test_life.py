"""Starting, dying, restarting and stopping, with the real Triton; nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from control_plane.adapters.embedded_triton.command import shm_prefix
from tests.e2e import raw_http
from tests.e2e.conftest import MODELS, Start
from tests.e2e.tidegate import Tidegate, descendants, living, run_cli, wait_for

ECHO = {"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}


ECHO_ONLY = ("--model-repository", str(MODELS), "--load", "echo")


def echo_status(tidegate: Tidegate) -> int:
    return raw_http.status(raw_http.infer(tidegate.port("http"), "echo", ECHO))


def shared_memory(tidegate: Tidegate) -> set[str]:
    """This one's regions in /dev/shm; another's are none of our business."""
    prefix = shm_prefix(tidegate.state_dir / "triton")
    return {name for name in os.listdir("/dev/shm") if name.startswith(prefix)}


def triton_pid(tidegate: Tidegate) -> int:
    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in living(descendants(tidegate.process.pid))}
    return next(pid for pid, name in names.items() if name == "tritonserver")


def test_sigterm_ends_everything_in_order(start: Start, tmp_path: Path) -> None:
    running = start(tmp_path, *ECHO_ONLY)
    below = descendants(running.process.pid)
    assert shared_memory(running)
    started_s = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(timeout=15) == 0, running.said()
    assert time.monotonic() - started_s < 10
    assert not living(below)
    assert not shared_memory(running)
    assert not (tmp_path / "endpoints.json").exists()


def test_kill_9_leaves_no_orphan(start: Start, tmp_path: Path) -> None:
    running = start(tmp_path, *ECHO_ONLY)
    below = descendants(running.process.pid)
    running.process.kill()
    running.process.wait(timeout=5)
    wait_for(lambda: not living(below), what="the end of Triton and its stubs")
    wait_for(lambda: not shared_memory(running), what="shared memory being freed")
    again = start(tmp_path, *ECHO_ONLY)  # the state folder of a killed one is usable, at once
    assert echo_status(again) == 200
    assert again.stop() == 0


def test_triton_that_dies_comes_back_with_its_models(start: Start, tmp_path: Path) -> None:
    running = start(tmp_path, *ECHO_ONLY)
    os.kill(triton_pid(running), signal.SIGKILL)
    answer = b""

    def is_refused() -> bool:
        nonlocal answer
        answer = raw_http.infer(running.port("http"), "echo", ECHO)
        return raw_http.status(answer) == 503

    wait_for(is_refused, timeout_s=5, what="a clear 503")
    assert "Triton" in raw_http.error(answer)
    assert b"Retry-After: 1" in answer
    assert raw_http.status(raw_http.exchange(running.port("http"), "GET", "/v2/health/live")) == 200
    wait_for(lambda: echo_status(running) == 200, timeout_s=30, what="the restart")
    assert running.stop() == 0


def test_requests_in_flight_finish_when_told_to_stop(start: Start, tmp_path: Path) -> None:
    running = start(tmp_path, "--model-repository", str(MODELS), "--load", "slow")
    body = json.dumps({"inputs": [{"name": "SECONDS", "shape": [1, 1], "datatype": "FP32", "data": [1.5]}]}).encode()
    with socket.create_connection(("127.0.0.1", running.port("http")), timeout=10) as connection:
        connection.sendall(b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(0.3)
        running.process.send_signal(signal.SIGTERM)
        answer = raw_http.read_answer(connection)
    assert raw_http.status(answer) == 200
    assert b"Connection: close" in answer
    assert running.process.wait(timeout=10) == 0


def test_a_model_that_fails_is_reported_and_the_rest_is_served(start: Start, tmp_path: Path) -> None:
    running = start(tmp_path, *ECHO_ONLY, "--load", "broken", "--load", "nowhere")
    assert echo_status(running) == 200
    said = running.said()
    assert running.stop() == 0
    assert "broken on purpose" in said
    assert "nowhere" in said


def test_attaches_to_a_running_triton(start: Start, tmp_path: Path, tidegate: Tidegate) -> None:
    http, grpc, metrics = (tidegate.triton_port(name) for name in ("HTTPService", "GRPCInferenceService", "Metrics Service"))
    attached = start(tmp_path, "--triton-url", f"http://127.0.0.1:{http}?grpc_port={grpc}&metrics_port={metrics}")
    assert echo_status(attached) == 200
    assert not any("tritonserver" in Path(f"/proc/{pid}/comm").read_text() for pid in living(descendants(attached.process.pid)))
    assert attached.stop() == 0
    assert echo_status(tidegate) == 200


REFUSALS = [
    pytest.param(["--host", "0.0.0.0"], "without authentication is refused", id="beyond loopback"),
    pytest.param(["--admin-host", "0.0.0.0"], "without authentication is refused", id="admin beyond loopback"),
    pytest.param(["--model-repository", "/no/such/folder"], "/no/such/folder", id="no such repository"),
    pytest.param(["--triton-url", "ftp://x"], "expected http://HOST", id="bad URL"),
    pytest.param(["--http-port", "99999"], "--http-port", id="no such port"),
    pytest.param(["--triton-arg", "--no-such-flag=1"], "--no-such-flag=1: Triton has no such flag", id="a flag that Triton does not know"),
    pytest.param(["--triton-arg", "--http-addr=0.0.0.0"], "Triton has no such flag", id="the beginning of one that is refused"),
    pytest.param(["--triton-arg", "--rate-limit-resource=x"], "'<resource_name>:<count>", id="a flag's value that Triton does not take"),
]


@pytest.mark.parametrize(("arguments", "says"), REFUSALS)
def test_a_start_that_cannot_work_says_why_in_one_line(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = run_cli("serve", "--state-dir", str(tmp_path), "--grpc-port", "0", "--metrics-port", "0", "--admin-port", "0", *arguments)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_named(tmp_path: Path, tidegate: Tidegate) -> None:
    for door in ("http", "grpc", "admin"):
        ports = {"http": 0, "grpc": 0, "metrics": 0, "admin": 0} | {door: tidegate.port(door)}
        flags = [part for name, port in ports.items() for part in (f"--{name}-port", str(port))]
        done = run_cli("serve", "--state-dir", str(tmp_path), *flags)
        assert done.returncode == 1
        assert f"port {tidegate.port(door)} on 127.0.0.1 is taken" in done.stderr
        assert f"--{door}-port" in done.stderr


def test_a_state_folder_has_one_holder(tidegate: Tidegate) -> None:
    done = run_cli(
        "serve", "--state-dir", str(tidegate.state_dir), *(p for d in ("http", "grpc", "metrics", "admin") for p in (f"--{d}-port", "0"))
    )
    assert done.returncode == 1
    assert f"in use by tidegate with pid {tidegate.process.pid}" in done.stderr
