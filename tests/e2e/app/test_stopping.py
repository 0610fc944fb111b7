"""A stop with the real processes: readiness says no first, everything is answered or told why not, and all ends in time."""

from __future__ import annotations

import http.client
import json
import queue
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc

from tests.e2e import raw_http
from tests.e2e.app.test_workers import sample
from tests.e2e.conftest import MODELS, Start
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate, descendants, living, shared_memory, wait_for

STOP_S = 30.0
"""Most that a stop takes beyond its pause and its drain, on a slow and busy machine; what it must not wait for takes a minute or more."""
ECHO = {"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
STOPPING = "the gateway is stopping; try again shortly"

_DRIP = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, text = request.get_response_sender(), pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text", text)]))
            time.sleep(float(pb_utils.get_input_tensor_by_name(request, "seconds").as_numpy()[0]))
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text", text)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_DRIP_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] }, { name: "seconds" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 2 } ]
"""


@pytest.fixture(scope="module")
def dripping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a model that answers at once, and again after as many seconds as it is told."""
    root = tmp_path_factory.mktemp("models")
    (root / "drip/1").mkdir(parents=True)
    (root / "drip/1/model.py").write_text(_DRIP)
    (root / "drip/config.pbtxt").write_text(_DRIP_CONFIG)
    return root


def flags(workers: int, *, pause_s: float, drain_s: float) -> tuple[str, ...]:
    times = ("--drain-pause-s", str(pause_s), "--drain-timeout-s", str(drain_s))
    return ("--workers", str(workers), "--model-repository", str(MODELS), COMPLETE, "--load", "echo", "--load", "slow", *times)


def slow_request(seconds: float) -> bytes:
    body = json.dumps({"inputs": [{"name": "SECONDS", "shape": [1, 1], "datatype": "FP32", "data": [seconds]}]}).encode()
    return b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@contextmanager
def asking(tidegate: Tidegate, request: bytes) -> Iterator[socket.socket]:
    """A connection on which a request has been sent."""
    with socket.create_connection(("127.0.0.1", tidegate.port("http")), timeout=LONG_S) as connection:
        connection.sendall(request)
        yield connection


def in_flight(tidegate: Tidegate) -> int:
    return sample(tidegate, "tidegate_requests_in_flight")


def says_ready(tidegate: Tidegate) -> list[int]:
    """The status of readiness, on connections that any worker may get."""
    return [raw_http.status(raw_http.exchange(tidegate.port("http"), "GET", "/v2/health/ready")) for _ in range(8)]


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=LONG_S) as page:
            return int(page.status)
    except urllib.error.HTTPError as exc:
        return exc.code


def require_end(tidegate: Tidegate, *, by_s: float, below: set[int]) -> None:
    """The process and all beneath it, Triton and its guardian included, have ended at `by_s` of the monotonic clock, and left nothing."""
    assert tidegate.process.wait(timeout=LONG_S) == 0, tidegate.said()
    assert time.monotonic() <= by_s
    assert not living(below), "processes outlived tidegate"
    assert not shared_memory(tidegate)
    assert not (tidegate.state_dir / "endpoints.json").exists()
    assert "defect" not in tidegate.said()


def test_it_says_no_first_and_serves_everything_until_its_ports_close(start: Start, tmp_path: Path) -> None:
    running = start(tmp_path, *flags(2, pause_s=6.0, drain_s=100.0))
    below = descendants(running.process.pid)
    client = tritonclient.grpc.InferenceServerClient(running.address("grpc"))
    tensor = tritonclient.grpc.InferInput("INPUT0", [1, 2], "FP32").set_data_from_numpy(np.ones((1, 2), np.float32))
    assert client.is_server_ready()
    with asking(running, slow_request(9.0)) as longer_than_the_pause, grpc.insecure_channel(running.address("grpc")) as channel:
        wait_for(lambda: in_flight(running) == 1, what="the request being in flight")
        told_s = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        wait_for(lambda: set(says_ready(running)) == {503}, what="not ready")
        assert not client.is_server_ready()
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x02", "NOT_SERVING"
        admin = running.endpoints["admin"]
        assert (status_of(f"{admin}/health/ready"), status_of(f"{admin}/health/live")) == (503, 200)
        keeps_alive = http.client.HTTPConnection("127.0.0.1", running.port("http"), timeout=LONG_S)
        answered = 0
        while time.monotonic() < told_s + 4.5:  # a client that nobody has sent elsewhere: none of its requests is lost
            keeps_alive.request("POST", "/v2/models/echo/infer", json.dumps(ECHO))
            answer = keeps_alive.getresponse()
            assert (answer.status, answer.getheader("Connection")) == (200, "close"), answer.read()
            answer.read()
            assert client.infer("echo", [tensor]).as_numpy("OUTPUT0").tolist() == [[1.0, 1.0]]
            answered += 1
            time.sleep(0.05)
        assert answered > 0
        wait_for(lambda: refuses(running), what="the ports to close")
        assert told_s + 5.9 < time.monotonic()
        answer_of_slow = raw_http.read_answer(longer_than_the_pause)
    assert raw_http.status(answer_of_slow) == 200
    assert b"Connection: close" in answer_of_slow
    client.close()
    require_end(running, by_s=told_s + 9.0 + STOP_S, below=below)


def refuses(tidegate: Tidegate) -> bool:
    try:
        socket.create_connection(("127.0.0.1", tidegate.port("http")), timeout=LONG_S).close()
    except ConnectionRefusedError:
        return True
    return False


def test_what_outlasts_the_drain_is_told_so_and_all_has_ended_in_time(start: Start, tmp_path: Path, dripping: Path) -> None:
    drain_s = 2.0
    repository = ("--model-repository", str(dripping), "--load", "drip")
    running = start(tmp_path, *flags(1, pause_s=0.0, drain_s=drain_s), *repository)
    below = descendants(running.process.pid)
    event = json.dumps({"text": "a", "seconds": 60.0}).encode()
    generate = b"POST /v2/models/drip/generate_stream HTTP/1.0\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(event), event)
    with asking(running, slow_request(60.0)) as first, asking(running, slow_request(60.0)) as queued, asking(running, generate) as events:
        while b"data: " not in (piece := events.recv(1 << 16)):
            assert piece, "closed before the first event"
        with calling(running) as (unary, stream):
            wait_for(lambda: in_flight(running) == 5, what="all of them being in flight")
            told_s = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            for connection in (first, queued):
                answer = raw_http.read_answer(connection)
                assert (raw_http.status(answer), raw_http.error(answer)) == (503, STOPPING)
                assert b"\r\nRetry-After: 1\r\n" in answer
                assert b"\r\nConnection: close\r\n" in answer
            assert time.monotonic() >= told_s + drain_s
            for told in (unary.get(timeout=LONG_S), stream.get(timeout=LONG_S)):
                assert (told.status(), told.message()) == ("StatusCode.UNAVAILABLE", STOPPING)
        assert read_to_the_end(events).endswith(b'data: {"error":"%b"}\n\n' % STOPPING.encode())
    require_end(running, by_s=told_s + drain_s + STOP_S, below=below)


@contextmanager
def calling(tidegate: Tidegate) -> Iterator[tuple[queue.Queue[Any], queue.Queue[Any]]]:
    """A call and a stream over gRPC that would take a minute; the errors that they end with."""
    unary, stream = queue.Queue[Any](), queue.Queue[Any]()
    answers = queue.Queue[Any]()
    client = tritonclient.grpc.InferenceServerClient(tidegate.address("grpc"))
    seconds = tritonclient.grpc.InferInput("SECONDS", [1, 1], "FP32").set_data_from_numpy(np.full((1, 1), 60, np.float32))
    text = tritonclient.grpc.InferInput("text", [1], "BYTES").set_data_from_numpy(np.array([b"a"], np.object_))
    pause = tritonclient.grpc.InferInput("seconds", [1], "FP32").set_data_from_numpy(np.full(1, 60, np.float32))

    def ask() -> None:
        try:
            client.infer("slow", [seconds])
        except Exception as exc:
            unary.put(exc)

    asked = threading.Thread(target=ask)
    asked.start()
    client.start_stream(lambda result, error: answers.put(result) if error is None else stream.put(error))
    try:
        client.async_stream_infer("drip", [text, pause])
        answers.get(timeout=LONG_S)
        yield unary, stream
    finally:
        client.stop_stream()
        asked.join()
        client.close()


def read_to_the_end(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(1 << 16):
        received += piece
    return received


def test_a_second_signal_ends_it_at_once(start: Start, tmp_path: Path) -> None:
    running = start(tmp_path, *flags(2, pause_s=100.0, drain_s=100.0))
    below = descendants(running.process.pid)
    with asking(running, slow_request(60.0)) as connection:
        wait_for(lambda: in_flight(running) == 1, what="the request being in flight")
        running.process.send_signal(signal.SIGTERM)
        wait_for(lambda: set(says_ready(running)) == {503}, what="not ready")
        told_s = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        answer = raw_http.read_answer(connection)
        assert (raw_http.status(answer), raw_http.error(answer)) == (503, STOPPING)
    require_end(running, by_s=told_s + STOP_S, below=below)


def test_ctrl_c_neither_pauses_nor_waits_for_an_idle_stream(start: Start, tmp_path: Path) -> None:
    running = start(tmp_path, *flags(1, pause_s=100.0, drain_s=100.0))
    below = descendants(running.process.pid)
    client = tritonclient.grpc.InferenceServerClient(running.address("grpc"))
    tensor = tritonclient.grpc.InferInput("INPUT0", [1, 2], "FP32").set_data_from_numpy(np.ones((1, 2), np.float32))
    told = queue.Queue[Any]()
    client.start_stream(lambda result, error: told.put(error))
    client.async_stream_infer("echo", [tensor])
    assert told.get(timeout=LONG_S) is None
    told_s = time.monotonic()
    running.process.send_signal(signal.SIGINT)
    error = told.get(timeout=LONG_S)
    assert (error.status(), error.message()) == ("StatusCode.UNAVAILABLE", STOPPING)
    client.stop_stream()
    client.close()
    require_end(running, by_s=told_s + 4.0 + STOP_S, below=below)
