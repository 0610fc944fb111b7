"""Runs wrk (HTTP) and h2load (gRPC, and HTTP over Unix sockets, which wrk does not know) and reads what they measured.

Both are closed loops, in which a connection asks again when it was answered; h2load may also be given a rate (`open_loop`).
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perf.load.echo_requests import GRPC_PATH, HEADER_LENGTH, HTTP_PATH, Echo
from perf.measurement.runs import GeneratedRun
from perf.servers.processes import program

_GRACE_S = 30.0
_SHORT_ANSWERS = 0.98
"""h2load counts the bytes of answers that its end cuts off, and not their requests; more than this is missing when calls fail."""

_WRK_SCRIPT = """
function init(arguments)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/octet-stream"
  wrk.headers["%s"] = arguments[2]
  wrk.headers["x-api-key"] = arguments[3]
  local file = assert(io.open(arguments[1], "rb"))
  wrk.body = file:read("*a")
  file:close()
  if arguments[4] == "traced" then
    local number = 0
    function request()
      number = number + 1
      wrk.headers["traceparent"] = string.format("00-%%032x-%%016x-01", number, number)
      wrk.headers["x-request-id"] = string.format("%%08x", number)
      return wrk.format()
    end
  end
end

function done(summary, latency, requests)
  local failed = summary.errors
  io.write(string.format('RESULT {"requests": %%d, "seconds": %%f, "p50_us": %%f, "p99_us": %%f, "errors": %%d}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99),
    failed.connect + failed.read + failed.write + failed.status + failed.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Result of one run of a generator."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    errors: int

    def at_server(self, cpu_s: float) -> GeneratedRun:
        """Return the run at a server whose processes took so much CPU time meanwhile."""
        return GeneratedRun(self.requests / self.seconds, self.p50_ms, self.p99_ms, cpu_s / max(self.requests, 1) * 1e6, self.errors)


class Http:
    """Generator wrk: one thread, a keep-alive connection per caller; `traced`, each request has a trace context and an id.

    wrk itself takes whole seconds only. It ends in order when it is interrupted, so that is how a run ends that is shorter.
    """

    def __init__(self, echo: Echo, folder: Path, *, key: str = "none", traced: bool = False) -> None:
        request, self.key = echo.http_request(), key
        self._how = "traced" if traced else "plain"
        self._script, self._body, self._header_length = folder / "wrk.lua", folder / "http.body", request.header_length
        self._script.write_text(_WRK_SCRIPT % HEADER_LENGTH)
        self._body.write_bytes(request.body)

    def run(self, address: str, *, connections: int, duration_s: float) -> Loaded:
        return that_measured(lambda seconds: self._run(address, connections, seconds), duration_s)

    def _run(self, address: str, connections: int, duration_s: float) -> Loaded:
        whole_s = math.ceil(duration_s)
        interrupted = [] if whole_s == duration_s else ["timeout", "--preserve-status", "--signal=INT", f"{duration_s}"]
        words = _run(
            [*interrupted, "wrk", "-t1", f"-c{connections}", f"-d{whole_s}s", "--timeout", "30s", "--latency", "-s", str(self._script),
             f"http://{address}{HTTP_PATH}", "--", str(self._body), str(self._header_length), self.key, self._how],
            duration_s,
        )  # fmt: skip
        return read_wrk(words)


def that_measured(run: Callable[[float], Loaded], duration_s: float) -> Loaded:
    """A run in which something was answered: where a busy machine has answered nothing in a part of a second, one of a whole second."""
    if duration_s < 1.0:
        with suppress(RuntimeError):
            if (loaded := run(duration_s)).requests:
                return loaded
    return run(max(1.0, duration_s))


def read_wrk(words: str) -> Loaded:
    """What our script for wrk printed. Raises RuntimeError when there is nothing."""
    found = re.search(r"^RESULT (.*)$", words, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"wrk measured nothing:\n{words[-2000:]}")
    result = json.loads(found.group(1))
    return Loaded(result["requests"], result["seconds"], result["p50_us"] / 1e3, result["p99_us"] / 1e3, result["errors"])


class Grpc:
    """Generator h2load: one thread, a connection per caller with one call at a time."""

    def __init__(self, echo: Echo, folder: Path, *, key: str = "none") -> None:
        self.key = key
        self._body, self._answer_bytes = folder / "grpc.message", len(echo.grpc_answer())
        self._body.write_bytes(echo.grpc_request())

    def run(self, address: str, *, connections: int, duration_s: float) -> Loaded:
        words = ["-d", str(self._body), *_headers({"content-type": "application/grpc", "te": "trailers", "x-api-key": self.key})]
        return _h2load([*words, *_where(address, GRPC_PATH)], self._answer_bytes, connections=connections, duration_s=duration_s)


class SocketHttp:
    """Generator h2load over HTTP/1.1: a keep-alive connection per caller; for Unix sockets."""

    def __init__(self, echo: Echo, folder: Path, *, key: str = "none") -> None:
        request, self.key = echo.http_request(), key
        self._header_length, self._answer_bytes = request.header_length, len(echo.http_answer().body)
        self._body = folder / "http.body"
        self._body.write_bytes(request.body)

    def run(self, address: str, *, connections: int, duration_s: float) -> Loaded:
        headers = {"content-type": "application/octet-stream", HEADER_LENGTH.lower(): str(self._header_length), "x-api-key": self.key}
        words = ["--h1", "-d", str(self._body), *_headers(headers), *_where(address, HTTP_PATH)]
        return _h2load(words, self._answer_bytes, connections=connections, duration_s=duration_s)


def open_loop(
    address: str,
    path: str,
    body: Path,
    headers: Mapping[str, str],
    log: Path,
    *,
    is_http1: bool,
    per_s: float,
    connections: int,
    at_once: int,
    seconds: float,
) -> list[str]:
    """The command by which h2load sends so many requests a second, as far as `at_once` on each connection allow, and logs each."""
    rate = [f"-c{connections}", f"-m{at_once}", f"--rps={per_s / connections:.4f}", f"-D{seconds * 1e3:.0f}ms", f"--log-file={log}"]
    words = [*(["--h1"] if is_http1 else []), "-d", str(body), *_headers(headers), *_where(address, path)]
    return [program("h2load") or "h2load", "-t1", *rate, *words]


def _headers(headers: Mapping[str, str]) -> list[str]:
    return [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]


def _where(address: str, path: str) -> list[str]:
    """What h2load calls a path at `HOST:PORT`, or at a Unix socket, `unix:` and its path."""
    return ["-B", address, f"http://localhost{path}"] if address.startswith("unix:") else [f"http://{address}{path}"]


def _h2load(words: list[str], answer_bytes: int, *, connections: int, duration_s: float) -> Loaded:
    return that_measured(lambda seconds: _run_h2load(words, answer_bytes, connections, seconds), duration_s)


def _run_h2load(words: list[str], answer_bytes: int, connections: int, duration_s: float) -> Loaded:
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as folder:
        log = Path(folder, "h2load.log")
        how = ["-t1", f"-c{connections}", "-m1", f"-D{duration_s * 1e3:.0f}ms", f"--log-file={log}"]
        said = _run(["h2load", *how, *words], duration_s)
        return read_h2load(said, log.read_bytes(), answer_bytes=answer_bytes, seconds=duration_s)


def read_h2load(words: str, log: bytes, *, answer_bytes: int, seconds: float) -> Loaded:
    """What h2load printed, and its log: a line of start, status and microseconds for each request.

    Calls that failed in gRPC only are counted too: h2load does not read trailers, but such an answer has no message of `answer_bytes`.

    Raises:
        RuntimeError: no request succeeded, or the words are not understood.
    """
    columns = np.array(log.split(), dtype=np.int64).reshape(-1, 3)
    latencies_us = columns[columns[:, 1] == 200, 2]
    failed = re.search(r"(\d+) failed, (\d+) errored, (\d+) timeout", words)
    data = re.search(r"headers \(.*?\), .*?\((\d+)\) data", words)
    if not len(latencies_us) or failed is None or data is None:
        raise RuntimeError(f"h2load measured nothing:\n{words[-2000:]}")
    p50_us, p99_us = (float(each) for each in np.percentile(latencies_us, [50, 99]))
    requests, answered = len(latencies_us), int(data.group(1)) / answer_bytes
    unanswered = 0 if answered >= _SHORT_ANSWERS * requests else round(requests - answered)
    return Loaded(requests, seconds, p50_us / 1e3, p99_us / 1e3, sum(map(int, failed.groups())) + unanswered)


def _run(command: list[str], duration_s: float) -> str:
    done = subprocess.run([program(command[0]) or command[0], *command[1:]], capture_output=True, text=True, timeout=duration_s + _GRACE_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
