"""What wrk and h2load print is read as they mean it, and failures of gRPC that h2load does not see are counted."""

from __future__ import annotations

import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from perf.load.echo_requests import HEADER_LENGTH, HTTP_PATH, Echo
from perf.load.load_generators import Loaded, SocketHttp, read_h2load, read_wrk, that_measured
from perf.measurement.runs import GeneratedRun
from perf.servers.processes import program

WRK = """Running 1s test @ http://127.0.0.1:1/v2/models/echo/infer
  1 threads and 8 connections
RESULT {"requests": 300, "seconds": 1.5, "p50_us": 120.0, "p99_us": 900.0, "errors": 2}
"""
H2LOAD = """finished in 1.00s, 4.00 req/s, 102.66MB/s
requests: 4 total, 8 started, 4 done, 4 succeeded, {failed} failed, {errored} errored, 0 timeout
status codes: 4 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 102.66MB (107650864) total, 781.99KB (800760) headers (space savings 93.10%), 6.2KB ({data}) data
"""
LOG = b"1795256070724487\t200\t100\n1795256070724593\t200\t200\n1795256070724602\t200\t300\n1795256070724700\t200\t400\n"


def h2load(*, data: int = 400, failed: int = 0, errored: int = 0, log: bytes = LOG) -> Loaded:
    return read_h2load(H2LOAD.format(data=data, failed=failed, errored=errored), log, answer_bytes=100, seconds=2.0)


def test_wrk() -> None:
    assert read_wrk(WRK) == Loaded(requests=300, seconds=1.5, p50_ms=0.12, p99_ms=0.9, errors=2)


@pytest.mark.parametrize("short", [Loaded(0, 0.3, 0.0, 0.0, 0), RuntimeError("interrupted before it began")], ids=["nothing", "error"])
def test_a_short_run_that_measured_nothing_is_done_again_for_a_second(short: Loaded | Exception) -> None:
    asked: list[float] = []

    def run(seconds: float) -> Loaded:
        asked.append(seconds)
        if seconds == 1.0:
            return Loaded(5, 1.0, 1.0, 2.0, 0)
        if isinstance(short, Exception):
            raise short
        return short

    assert that_measured(run, 0.3).requests == 5
    assert asked == [0.3, 1.0]
    asked.clear()
    assert that_measured(run, 1.0).requests == 5
    assert asked == [1.0]


def test_wrk_without_a_result() -> None:
    with pytest.raises(RuntimeError, match="unable to connect"):
        read_wrk("unable to connect to 127.0.0.1:1 Connection refused")


def test_h2load() -> None:
    loaded = h2load()
    assert (loaded.requests, loaded.seconds, loaded.errors) == (4, 2.0, 0)
    assert loaded.p50_ms == pytest.approx(0.25)
    assert loaded.p99_ms == pytest.approx(0.397)


def test_failed_streams_count_as_errors_and_not_as_latencies() -> None:
    loaded = h2load(failed=2, errored=1, log=LOG + b"1795256070724800\t-1\t99999999\n")
    assert (loaded.requests, loaded.errors) == (4, 3)
    assert loaded.p99_ms < 1


@pytest.mark.parametrize(
    ("data", "errors"),
    [
        pytest.param(420, 0, id="an answer that the end cut off was counted as data only"),
        pytest.param(394, 0, id="answers a little shorter than ours"),
        pytest.param(300, 1, id="one had no message"),
        pytest.param(0, 4, id="none had"),
    ],
)
def test_answers_without_a_message_failed(data: int, errors: int) -> None:
    assert h2load(data=data).errors == errors


def test_h2load_without_a_success() -> None:
    with pytest.raises(RuntimeError, match="measured nothing"):
        h2load(log=b"1795256070724487\t404\t100\n")


@pytest.mark.parametrize(("requests", "cpu_us"), [(300, 500.0), (0, 150_000.0)])
def test_a_run_at_a_server_has_its_cpu_time_per_request(requests: int, cpu_us: float) -> None:
    loaded = Loaded(requests=requests, seconds=1.5, p50_ms=0.12, p99_ms=0.9, errors=2)
    assert loaded.at_server(0.15) == GeneratedRun(requests / 1.5, 0.12, 0.9, pytest.approx(cpu_us), 2)


@pytest.mark.skipif(program("h2load") is None, reason="nghttp2-client is missing")
def test_http_over_a_unix_socket(tmp_path: Path) -> None:
    echo, asked = Echo(64), []
    answer = echo.http_answer().body

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            asked.append((self.path, self.headers[HEADER_LENGTH], self.headers["x-api-key"], body))
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def address_string(self) -> str:
            return "a socket"

        def log_message(self, *_: object) -> None:
            pass

    address = tmp_path / "http.sock"
    with socketserver.ThreadingUnixStreamServer(str(address), Handler) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            loaded = SocketHttp(echo, tmp_path, key="a-key").run(f"unix:{address}", connections=1, duration_s=0.3)
        finally:
            server.shutdown()
            serving.join()
    request = echo.http_request()
    assert set(asked) == {(HTTP_PATH, str(request.header_length), "a-key", request.body)}
    assert loaded.requests > 0
    assert loaded.errors == 0
    assert 0 < loaded.p50_ms < 300
