"""The servers that `perf.long_documents` compares, each limited to the same cores, and how each is handed a document."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perf.load.closed_loop import Ask
from perf.load.inference_requests import Vector, http_post
from perf.long_documents.documents import Document
from perf.long_documents.report import CALL_BY_CALL, FLASK, NO_CACHE, NO_INT8, NO_ONNX, PRUNED, SHIPPED
from perf.servers.cache_answers import CacheAnswers
from perf.servers.processes import free_port, running
from perf.servers.serving import Tidegate, tidegate
from perf.servers.variants import build, place_ensemble

MODEL = "text_embedding"
_START_TIMEOUT_S = 180.0

_VARIANTS = {NO_INT8: "fp32", NO_ONNX: "bf16", PRUNED: "pruned"}
"""The encoder's variant by way, where it is not the one that it takes by itself. `bf16` is what PyTorch compiled; all others are ONNX."""


@dataclass(frozen=True, slots=True)
class Way:
    """One server, and the requests that a document becomes there."""

    address: str
    asks: Callable[[Document], list[Ask]]
    vectors: Callable[[bytes], Vector]
    """Reads the embeddings in one answer: float32, shape [pages, dimensions]."""
    gateway: Tidegate | None = None

    def cache_answers(self) -> CacheAnswers:
        return CacheAnswers.at(self.gateway.metrics) if self.gateway else CacheAnswers(0, 0)


@contextlib.contextmanager
def limited_to(cores: int) -> Iterator[None]:
    """What is started within has the last `cores` CPUs of this process; afterwards this process has the others, if there are any."""
    cpus = sorted(os.sched_getaffinity(0))
    servers = set(cpus[-cores:])
    os.sched_setaffinity(0, servers)
    try:
        yield
    finally:
        os.sched_setaffinity(0, set(cpus) - servers or servers)


def start_ways(stack: contextlib.ExitStack, wanted: Sequence[str]) -> dict[str, Way]:
    """Start the servers of these ways and return them by the way's name; all run until `stack` is closed."""
    ways: dict[str, Way] = {}
    if FLASK in wanted:
        ways[FLASK] = Way(stack.enter_context(_flask()), _whole("/embed", "texts"), _naive_vectors)
    for name in wanted:
        if name not in (FLASK, CALL_BY_CALL):
            started = stack.enter_context(_tidegate(name))
            ways[name] = Way(started.addresses["http"], _whole("/v1/embeddings", "input", model=MODEL), _openai_vectors, started)
    if CALL_BY_CALL in wanted:
        shipped = ways[SHIPPED]
        ways[CALL_BY_CALL] = Way(shipped.address, _page_by_page, _openai_vectors, shipped.gateway)
    return ways


@contextlib.contextmanager
def _flask() -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "perf.peers.naive.flask_torch", "--port", str(port)]
    with running(command, port, start_timeout_s=_START_TIMEOUT_S):
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def _tidegate(name: str) -> Iterator[Tidegate]:
    flags = ["--load", MODEL]
    if name == NO_CACHE:
        flags += ["--cache-bytes", "0"]
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as folder:
        if name in _VARIANTS:
            build(_VARIANTS[name])
            place_ensemble(Path(folder), _VARIANTS[name])
            flags += ["--model-repository", folder]
        with tidegate(flags) as started:
            yield started


def _whole(path: str, key: str, **more: str) -> Callable[[Document], list[Ask]]:
    return lambda document: [Ask(http_post(path, json.dumps({**more, key: document}).encode()), "document")]


def _page_by_page(document: Document) -> list[Ask]:
    asks = _whole("/v1/embeddings", "input", model=MODEL)
    return [ask for page in document for ask in asks((page,))]


def _naive_vectors(body: bytes) -> Vector:
    return np.asarray(json.loads(body)["embeddings"], dtype=np.float32)


def _openai_vectors(body: bytes) -> Vector:
    return np.asarray([row["embedding"] for row in json.loads(body)["data"]], dtype=np.float32)
