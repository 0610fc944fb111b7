"""The larger part of a spike, by h2load: a client in C costs so little that it is not the limit.

All its requests are equal, over HTTP those of one tenant and over gRPC those of the other. It waits for what comes late, as long as the
spike lasts, and asks no more than its connections have room for: what it could not send is counted.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perf.load.load_generators import open_loop
from perf.soak.asks import GRPC, HTTP, INFER, Ask
from perf.soak.models import FRESH
from perf.soak.outcomes import DEADLINE_S

_HTTP_CONNECTIONS = 1_000
_GRPC_CONNECTIONS, _CALLS_AT_ONCE = 4, 500
_GRACE_S = 30.0
_OK, _REFUSED, _EXPIRED = 200, (429, 503), 504


@dataclass(frozen=True, slots=True)
class Flooded:
    """Counts and latencies of h2load's requests over one protocol."""

    way: str
    requests: int
    """Requests that were planned."""
    sent: int
    answers: int
    refused: int
    expired: int
    errors: int
    in_time: int
    """Answers within the deadline."""
    p50_ms: float
    p99_ms: float
    """Percentiles of the answers' latencies; over gRPC of whatever ended a call."""


@dataclass(frozen=True, slots=True)
class Said:
    """h2load's words about the requests of one protocol, and its log."""

    way: str
    requests: int
    words: str
    log: bytes
    answer_bytes: int


async def flood(
    addresses: Mapping[str, str], keys: Sequence[str], asks: Mapping[str, Ask], answer_bytes: int, *, per_s: float, seconds: float
) -> list[Said]:
    """Send so many requests a second, half of them over either protocol; `answer_bytes` has an answer over gRPC."""
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as name:
        folder = Path(name)
        commands = {
            HTTP: _http(addresses[HTTP], asks[HTTP], folder, per_s=per_s / 2, seconds=seconds),
            GRPC: _grpc(addresses[GRPC], asks[GRPC], keys[-1], folder, per_s=per_s / 2, seconds=seconds),
        }
        said = await asyncio.gather(*(_run(command, seconds) for command in commands.values()))
        wanted = round(per_s / 2 * seconds)
        return [
            Said(way, wanted, words, (folder / f"{way}.log").read_bytes(), answer_bytes) for way, words in zip(commands, said, strict=True)
        ]


def _http(address: str, ask: Ask, folder: Path, *, per_s: float, seconds: float) -> list[str]:
    head, _, body = ask.data.partition(b"\r\n\r\n")
    fields = dict(line.decode().split(": ", 1) for line in head.split(b"\r\n")[1:])
    headers = {name.lower(): value for name, value in fields.items() if name.lower() not in ("host", "content-length")}
    (folder / "http.body").write_bytes(body)
    connections = max(1, min(_HTTP_CONNECTIONS, round(per_s)))
    return open_loop(
        address, f"/v2/models/{FRESH}/infer", folder / "http.body", headers, folder / "http.log",
        is_http1=True, per_s=per_s, connections=connections, at_once=1, seconds=seconds,
    )  # fmt: skip


def _grpc(address: str, ask: Ask, key: str, folder: Path, *, per_s: float, seconds: float) -> list[str]:
    (folder / "grpc.message").write_bytes(ask.data)
    headers = {"content-type": "application/grpc", "te": "trailers", "x-api-key": key, "grpc-timeout": f"{1e3 * DEADLINE_S:.0f}m"}
    return open_loop(
        address, INFER, folder / "grpc.message", headers, folder / "grpc.log",
        is_http1=False, per_s=per_s, connections=_GRPC_CONNECTIONS, at_once=_CALLS_AT_ONCE, seconds=seconds,
    )  # fmt: skip


async def _run(command: Sequence[str], seconds: float) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    try:
        async with asyncio.timeout(seconds + _GRACE_S):
            words, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{words.decode()[-2000:]}")
    return words.decode()


def read(said: Said) -> Flooded:
    """What became of the requests. Raises RuntimeError: the words are not understood."""
    started = re.search(r"(\d+) started", said.words)
    data = re.search(r"headers \(.*?\), .*?\((\d+)\) data", said.words)
    if started is None or data is None:
        raise RuntimeError(f"h2load measured nothing:\n{said.words[-2000:]}")
    columns = np.array(said.log.split(), dtype=np.int64).reshape(-1, 3)
    status, latency_ms = columns[:, 1], columns[:, 2] / 1e3
    is_late = latency_ms > 1e3 * DEADLINE_S
    requests, sent = said.requests, min(int(started.group(1)), said.requests)
    if said.way == HTTP:
        is_answer, refused, expired = status == _OK, int(np.isin(status, _REFUSED).sum()), int((status == _EXPIRED).sum())
        answers, in_time, latency_ms = int(is_answer.sum()), int((is_answer & ~is_late).sum()), latency_ms[is_answer]
        errors = len(columns) - answers - refused - expired
    else:  # h2load reads no trailers: how many answers there were is known by their bytes, and of the rest how long they took
        ended, late = int((status == _OK).sum()), int((is_late & (status == _OK)).sum())
        answers = min(ended, round(int(data.group(1)) / said.answer_bytes))
        expired = min(ended - answers, late)
        refused, errors = ended - answers - expired, len(columns) - ended
        in_time = max(0, min(answers, ended - late - refused))
    p50_ms, p99_ms = (float(each) for each in np.percentile(latency_ms, [50, 99])) if len(latency_ms) else (np.nan, np.nan)
    return Flooded(said.way, requests, sent, answers, refused, expired, errors, in_time, p50_ms, p99_ms)
