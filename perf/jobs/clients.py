"""Callers of `perf.jobs`: interactive ones in an open loop, those that hand in jobs, and OpenAI's batches."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf.load import closed_loop
from perf.load.closed_loop import Ask, Loaded

_TIMEOUT_S = 60.0
_BOUNDARY = "tidegate-perf"
_POLL_S = 0.05
_PIECE_BYTES = 64 * 1024
_PAGE = 1000


def ask(address: str, requests: Iterable[bytes], callers: int, duration_s: float) -> Loaded:
    """Send the requests by so many callers, each the next one when it was answered. For a spawned process, which does
    not import the `__main__` of a package."""
    asks: Iterator[Ask] = (Ask(request, "") for request in requests)
    return closed_loop.run("http", address, asks, callers=callers, duration_s=duration_s)


@dataclass(frozen=True, slots=True)
class Asked:
    """An open loop: what its requests took from when they were due, and how many failed."""

    latencies_ms: NDArray[np.float64]
    errors: int
    seconds: float
    refused: int = 0
    """Requests that were refused with 429 and when to come again, as they may be. They count neither as errors nor among the latencies."""
    jobs: frozenset[str] = frozenset()
    """Ids of the jobs that were accepted."""


def ask_at(
    address: str, requests: list[bytes], per_s: float, duration_s: float, *, wanted: int = 200, may_be_refused: bool = False
) -> Asked:
    """Send a request every `1 / per_s` seconds, whatever became of those before, each on a connection that is idle."""
    return asyncio.run(_Open(address, requests, wanted, may_be_refused).run(per_s, duration_s))


class _Open:
    def __init__(self, address: str, requests: list[bytes], wanted: int, may_be_refused: bool) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._requests, self._wanted, self._may_be_refused = requests, b" %d " % wanted, may_be_refused
        self._refused = 0
        self._jobs: set[str] = set()
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._latencies_s: list[float] = []
        self._errors = 0

    async def run(self, per_s: float, duration_s: float) -> Asked:
        began_s = time.monotonic()
        async with asyncio.timeout(duration_s + _TIMEOUT_S), asyncio.TaskGroup() as tasks:
            for number in range(int(per_s * duration_s)):
                due_s = began_s + number / per_s
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                tasks.create_task(self._ask(self._requests[number % len(self._requests)], due_s))
        for _, writer in self._idle:
            writer.close()
        seconds = time.monotonic() - began_s
        return Asked(np.array(self._latencies_s) * 1e3, self._errors, seconds, self._refused, frozenset(self._jobs))

    async def _ask(self, request: bytes, due_s: float) -> None:
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(self._host, self._port)
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await reader.readexactly(int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]))
        self._idle.append((reader, writer))
        if self._may_be_refused and b" 429 " in head[:16] and b"\r\nretry-after:" in head:
            self._refused += 1
            return
        self._latencies_s.append(time.monotonic() - due_s)
        is_wanted = self._wanted in head[:16]
        self._errors += not is_wanted
        if is_wanted and self._wanted == b" 202 ":
            self._jobs.add(json.loads(body)["id"])


def upload(address: str, size_bytes: int, seconds: float) -> None:
    """Upload a file evenly within so many seconds, and delete it. Raises RuntimeError: it was refused."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=_TIMEOUT_S)
    part = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n'
    head = (part % ("purpose", "") + "batch\r\n" + part % ("file", '; filename="in.jsonl"')).encode()
    end = f"\r\n--{_BOUNDARY}--\r\n".encode()
    try:
        connection.putrequest("POST", "/v1/files")
        connection.putheader("Content-Type", f"multipart/form-data; boundary={_BOUNDARY}")
        connection.putheader("Content-Length", str(len(head) + size_bytes + len(end)))
        connection.endheaders(head)
        piece, began_s = b"x" * _PIECE_BYTES, time.monotonic()
        for at in range(0, size_bytes, _PIECE_BYTES):
            time.sleep(max(0.0, began_s + at / size_bytes * seconds - time.monotonic()))
            connection.send(piece[: size_bytes - at])
        connection.send(end)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != http.client.OK:
            raise RuntimeError(f"the upload was refused: {answer.status} {text[:300]!r}")
        connection.request("DELETE", f"/v1/files/{json.loads(text)['id']}")
        connection.getresponse().read()
    finally:
        connection.close()


class Batches:
    """Client of OpenAI's files and batches."""

    def __init__(self, address: str) -> None:
        self._address = address

    def run(self, model: str, texts: list[str]) -> int:
        """Hand the texts in as one batch, wait for its end, and return how many were answered."""
        calls = ({"model": model, "input": text, "encoding_format": "base64"} for text in texts)
        lines = [
            json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": "/v1/embeddings", "body": call})
            for number, call in enumerate(calls)
        ]
        file = self._call("POST", "/v1/files", _multipart("\n".join(lines)), f"multipart/form-data; boundary={_BOUNDARY}")
        wanted = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
        batch = self._call("POST", "/v1/batches", json.dumps(wanted).encode(), "application/json")
        while batch["status"] in ("validating", "in_progress", "finalizing"):
            time.sleep(_POLL_S)
            batch = self._call("GET", f"/v1/batches/{batch['id']}")
        return int(batch["request_counts"]["completed"])

    def _call(self, method: str, path: str, body: bytes | None = None, content_type: str = "") -> Any:
        host, _, port = self._address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, body, {"Content-Type": content_type} if content_type else {})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != http.client.OK:
                raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]!r}")
            return json.loads(text)
        finally:
            connection.close()


def _multipart(lines: str) -> bytes:
    part = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n'
    fields = part % ("purpose", "") + "batch\r\n" + part % ("file", '; filename="in.jsonl"') + lines + "\r\n"
    return f"{fields}--{_BOUNDARY}--\r\n".encode()


def jobs_in(address: str, state: str) -> set[str]:
    """Ids of all jobs that are in a state."""
    found: set[str] = set()
    before = ""
    while page := _jobs(address, f"state={state}&limit={_PAGE}{before}"):
        found.update(page)
        before = f"&before={page[-1]}"
    return found


def are_open(address: str) -> bool:
    """Whether a job waits or runs. Asked in this order: what was handed out between two answers is in the second one."""
    return any(_jobs(address, f"state={state}&limit=1") for state in ("queued", "running"))


def _jobs(address: str, query: str) -> list[str]:
    with urllib.request.urlopen(f"http://{address}/v2/jobs?{query}", timeout=_TIMEOUT_S) as answer:
        return [str(job["id"]) for job in json.load(answer)["jobs"]]


def executed(triton: str, model: str) -> int:
    """How many requests Triton has computed of a model, ever."""
    with urllib.request.urlopen(f"http://{triton}/v2/models/{model}/stats", timeout=10) as answer:
        return sum(each["inference_stats"]["success"]["count"] for each in json.load(answer)["model_stats"])
