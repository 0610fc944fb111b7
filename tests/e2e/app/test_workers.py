"""Several worker processes on one port: scaling out changes nothing that clients or dashboards see."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import tritonclient.grpc
import tritonclient.http

from tests.e2e import raw_http
from tests.e2e import tidegate as servers
from tests.e2e.conftest import MODELS, Start
from tests.e2e.processes import processes, tritons_of, workers_of
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate, descendants, living, refused_start, wait_for

ECHO = {"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
WORKERS = 2
FLAGS = ("--workers", str(WORKERS), "--model-repository", str(MODELS), COMPLETE)
LOADED = ("--load", "echo", "--load", "slow")
CPUS = sorted(os.sched_getaffinity(0))
FIRST, SECOND = CPUS[:2]
PINNED = ("--gateway-cpus", f"{FIRST},{SECOND}", "--triton-cpus", str(SECOND))


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    folder = tmp_path_factory.mktemp("scaled")
    running = servers.start(folder, *FLAGS, *LOADED, *PINNED, "--http-socket", str(folder / "http.sock"))
    yield running
    below = descendants(running.process.pid)
    assert running.stop() == 0, running.said()
    assert not living(below), "processes outlived tidegate"
    assert not (folder / "http.sock").exists()


def sample(tidegate: Tidegate, name: str) -> float:
    """The sum of a metric's samples."""
    with urllib.request.urlopen(tidegate.endpoints["metrics"], timeout=LONG_S) as page:
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page.read().decode(), re.MULTILINE))


def ask(tidegate: Tidegate) -> int:
    """One request on a connection of its own, which the kernel gives to any worker."""
    return raw_http.status(raw_http.infer(tidegate.port("http"), "echo", ECHO))


def answered(tidegate: Tidegate) -> float:
    return sample(tidegate, "tidegate_requests_total")


def test_both_frontends_and_unmodified_clients(scaled: Tidegate) -> None:
    for client in (
        tritonclient.http.InferenceServerClient(scaled.address("http")),
        tritonclient.grpc.InferenceServerClient(scaled.address("grpc")),
    ):
        with client:
            assert client.is_server_ready()
            assert client.is_model_ready("echo")


def test_metrics_are_the_sum_over_all_of_them(scaled: Tidegate) -> None:
    before = answered(scaled)
    assert [ask(scaled) for _ in range(40)] == [200] * 40
    wait_for(lambda: answered(scaled) == before + 40, what="every request on the page")
    assert sample(scaled, "tidegate_request_duration_seconds_count") == before + 40
    assert sample(scaled, "tidegate_workers") == WORKERS


def test_what_triton_counts_is_charged_by_the_parent_and_is_on_the_page(scaled: Tidegate) -> None:
    before = sample(scaled, "tidegate_compute_units_total")
    assert [ask(scaled) for _ in range(40)] == [200] * 40
    wait_for(lambda: sample(scaled, "tidegate_compute_units_total") > before, what="their compute units on the page")


def test_models_are_loaded_through_any_of_them(scaled: Tidegate) -> None:
    for _ in range(5):  # connections of their own
        for what in ("unload", "load"):
            answer = raw_http.exchange(scaled.port("http"), "POST", f"/v2/repository/models/echo/{what}")
            assert raw_http.status(answer) == 200, answer
    assert ask(scaled) == 200
    answer = raw_http.exchange(scaled.port("http"), "POST", "/v2/repository/models/broken/load")
    assert raw_http.status(answer) == 400
    assert "broken on purpose" in raw_http.error(answer)


def test_a_worker_that_is_killed_costs_only_what_it_had_under_way(scaled: Tidegate) -> None:
    before = answered(scaled)
    victim = workers_of(scaled)[0]
    statuses: list[int] = []
    asked = 0
    for number in range(60):
        if number == 20:
            os.kill(victim, signal.SIGKILL)
        asked += 1
        with contextlib.suppress(OSError, AssertionError, ValueError):  # it was this worker's
            statuses.append(ask(scaled))
    assert set(statuses) == {200}
    assert len(statuses) >= asked - 2
    wait_for(lambda: len(workers_of(scaled)) == WORKERS and sample(scaled, "tidegate_workers") == WORKERS, what="the new worker")
    assert victim not in workers_of(scaled)
    wait_for(lambda: answered(scaled) >= before + len(statuses) - 20, what="metrics that do not fall")


def test_a_frozen_worker_gets_no_new_connections_and_is_replaced_when_it_is_back(scaled: Tidegate) -> None:
    frozen, other = workers_of(scaled)
    os.kill(frozen, signal.SIGSTOP)
    try:
        wait_for(lambda: sample(scaled, "tidegate_workers") == WORKERS - 1, timeout_s=20.0, what="its freeze being noticed")
        assert [ask(scaled) for _ in range(40)] == [200] * 40
        assert "has said nothing for" in scaled.said()
    finally:
        os.kill(frozen, signal.SIGCONT)
    wait_for(lambda: frozen not in workers_of(scaled), what="its end")
    wait_for(lambda: sample(scaled, "tidegate_workers") == WORKERS, what="another one in its place")
    assert other in workers_of(scaled)


def test_metrics_never_fall_when_a_worker_ends(scaled: Tidegate) -> None:
    for _ in range(20):
        ask(scaled)
    time.sleep(1.5)  # the workers tell every second
    before = answered(scaled)
    for pid in workers_of(scaled):
        os.kill(pid, signal.SIGTERM)
    wait_for(lambda: sample(scaled, "tidegate_workers") < WORKERS, what="a worker's end")
    assert answered(scaled) >= before
    wait_for(lambda: sample(scaled, "tidegate_workers") == WORKERS, what="new workers")
    assert answered(scaled) >= before
    assert ask(scaled) == 200


def test_a_worker_that_is_told_to_end_finishes_what_it_has(scaled: Tidegate) -> None:
    body = json.dumps({"inputs": [{"name": "SECONDS", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}).encode()
    with socket.create_connection(("127.0.0.1", scaled.port("http")), timeout=LONG_S) as connection:
        connection.sendall(b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        wait_for(lambda: sample(scaled, "tidegate_requests_in_flight") == 1, what="the request being in flight")
        for pid in workers_of(scaled):
            os.kill(pid, signal.SIGTERM)
        assert raw_http.status(raw_http.read_answer(connection)) == 200
    wait_for(lambda: sample(scaled, "tidegate_workers") == WORKERS, what="new workers")


def test_a_hangup_without_tls_ends_nobody(scaled: Tidegate) -> None:
    before = set(workers_of(scaled))
    for pid in (scaled.process.pid, *before):
        os.kill(pid, signal.SIGHUP)
    wait_for(lambda: scaled.said().count("SIGHUP is ignored") == 1 + len(before), what="a word from each")
    assert set(workers_of(scaled)) == before
    assert raw_http.status(raw_http.infer(scaled.port("http"), "echo", ECHO)) == 200


def test_garbage_where_they_share_their_demand_is_put_aside(start: Start, tmp_path: Path, scaled: Tidegate) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "demand.sqlite").write_bytes(b"garbage" * 1000)
    ports = [scaled.triton_port(name) for name in ("HTTPService", "GRPCInferenceService", "Metrics Service")]
    url = "http://127.0.0.1:{}?grpc_port={}&metrics_port={}".format(*ports)
    attached = start(tmp_path / "state", "--workers", str(WORKERS), "--triton-url", url)
    assert raw_http.status(raw_http.infer(attached.port("http"), "echo", ECHO)) == 200
    assert attached.said().count("is put aside as demand.sqlite.damaged") == 1
    assert (tmp_path / "state" / "demand.sqlite.damaged").read_bytes() == b"garbage" * 1000


def test_they_share_one_unix_socket(scaled: Tidegate) -> None:
    path = scaled.endpoints["http_socket"].removeprefix("unix:")

    async def live() -> bytes:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    async def many() -> list[bytes]:
        return await asyncio.gather(*(live() for _ in range(32)))

    assert all(answer.startswith(b"HTTP/1.1 200") for answer in asyncio.run(many()))


def test_the_port_is_not_shared_with_another_tidegate(scaled: Tidegate, tmp_path: Path) -> None:
    done = refused_start("--state-dir", str(tmp_path), "--workers", "2", "--http-port", str(scaled.port("http")))
    assert done.returncode == 1
    assert f"port {scaled.port('http')} on 127.0.0.1 is taken" in done.stderr


def test_each_keeps_to_its_cpu_and_triton_to_its_own(scaled: Tidegate) -> None:
    assert sorted(tuple(os.sched_getaffinity(pid)) for pid in workers_of(scaled)) == [(FIRST,), (SECOND,)]
    assert {tuple(os.sched_getaffinity(pid)) for pid in tritons_of(scaled)} == {(SECOND,)}
    assert len(tritons_of(scaled)) >= 2


def test_the_instances_of_models_keep_to_their_cpus_alone(start: Start, tmp_path: Path) -> None:
    running = start(tmp_path, "--model-repository", str(MODELS), COMPLETE, "--load", "echo", "--model-cpus", str(SECOND))
    assert {tuple(os.sched_getaffinity(pid)) for pid in processes(running, b"triton_python_backend_stub")} == {(SECOND,)}
    assert {tuple(sorted(os.sched_getaffinity(pid))) for pid in processes(running, b"bin/tritonserver")} == {tuple(CPUS)}
    below = descendants(running.process.pid)
    running.process.kill()
    running.process.wait()
    wait_for(lambda: not living(below), what="the end of Triton")


def test_triton_that_dies_comes_back_for_all_of_them_and_to_its_cpus(scaled: Tidegate) -> None:
    (triton,) = processes(scaled, b"bin/tritonserver")
    os.kill(triton, signal.SIGKILL)
    ready = partial(raw_http.exchange, scaled.port("http"), "GET", "/v2/health/ready")
    wait_for(lambda: raw_http.status(ready()) == 503, what="word of its end")
    wait_for(lambda: [ask(scaled) for _ in range(16)] == [200] * 16, what="the restart")
    assert {tuple(os.sched_getaffinity(pid)) for pid in tritons_of(scaled)} == {(SECOND,)}
