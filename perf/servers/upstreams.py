"""What stands behind every peer of `perf.gateway`: the real Triton with the echo model, or a stand-in that answers at once."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tritonclient.grpc import service_pb2

from perf.load.echo_requests import GRPC_PATH, GRPC_SERVICE, HEADER_LENGTH, MODEL, Echo, framed
from perf.servers.processes import PROJECT, free_port, program, running
from perf.servers.serving import PROTOCOLS, serving

UPSTREAMS = ("stand-in", "triton")
Addresses = Mapping[str, str]
"""`HOST:PORT` by protocol."""

_WINDOW_BITS = "24"
"""nghttpd's flow-control windows, 16 MiB: an upload of 1 MB never waits for one."""


@contextlib.contextmanager
def upstream(kind: str, echo: Echo) -> Iterator[Addresses]:
    """Start one of `UPSTREAMS`, which answers `echo`."""
    with triton() if kind == "triton" else stand_in(echo) as addresses:
        yield addresses


@contextlib.contextmanager
def triton(models: Sequence[str] = (MODEL,)) -> Iterator[Addresses]:
    """Triton with these of perf/models, started by a tidegate that is not measured."""
    with serving([PROJECT / "perf" / "models"], models) as addresses:
        yield {protocol: addresses["direct", protocol] for protocol in PROTOCOLS}


@contextlib.contextmanager
def stand_in(echo: Echo) -> Iterator[Addresses]:
    """HTTP: `peers/stand_in.py`. gRPC: nghttpd, which serves files: one per method, with the status as its trailer."""
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as name:
        folder, ports = Path(name), {protocol: free_port() for protocol in PROTOCOLS}
        _write_files(folder, echo)
        http = [sys.executable, "-m", "perf.peers.stand_in", "--port", str(ports["http"]), "--answer", str(folder / "http.answer")]
        grpc = [program("nghttpd") or "nghttpd", "--no-tls", "-a", "127.0.0.1", "-d", name, "-w", _WINDOW_BITS, "-W", _WINDOW_BITS,
                "--trailer", "grpc-status: 0", str(ports["grpc"])]  # fmt: skip
        with running(http, ports["http"]), running(grpc, ports["grpc"]):
            yield {protocol: f"127.0.0.1:{port}" for protocol, port in ports.items()}


def _write_files(folder: Path, echo: Echo) -> None:
    answer = echo.http_answer()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n{HEADER_LENGTH}: {answer.header_length}\r\n"
    (folder / "http.answer").write_bytes(f"{head}Content-Length: {len(answer.body)}\r\n\r\n".encode() + answer.body)
    (folder / GRPC_SERVICE.strip("/")).mkdir()
    (folder / GRPC_PATH.lstrip("/")).write_bytes(echo.grpc_answer())
    for method, message in {
        "ServerLive": service_pb2.ServerLiveResponse(live=True),
        "ServerReady": service_pb2.ServerReadyResponse(ready=True),
        "RepositoryIndex": service_pb2.RepositoryIndexResponse(),
    }.items():
        (folder / f"{GRPC_SERVICE.strip('/')}/{method}").write_bytes(framed(message))
