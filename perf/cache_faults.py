"""What callers feel of a second level that fails: a Redis that is well, slow, held still or not there at all, beside none.

    python -m perf.cache_faults [--requests 4000] [--callers 8] [--rounds 5]

The requests of `perf.repeats`, with a first level of a few answers only, so that everything else is asked of Redis. The slow one sleeps
50 ms of every 60. Wanted: a p99 of at most 1.2 times the one without a second level, and no error. Writes perf/results/cache-faults.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import redis
from rich.console import Console
from rich.table import Table

from perf.closed_loop import Ask
from perf.gateway_report import commit, machine
from perf.inference_requests import triton_binary
from perf.interleaved import interleave, median_of
from perf.processes import PROJECT, exit_on_sigterm, free_port, require_programs, running
from perf.repeats import MODEL, Run, drawn, measure

_AT_MOST = 1.2
_FEW_BYTES = "50000"
_SLEEPS_S, _WAKES_S = 0.05, 0.01


@dataclass(frozen=True, slots=True)
class _Ratio:
    ratio: float


def main() -> None:
    arguments = _arguments()
    exit_on_sigterm()
    require_programs(("redis-server",))
    arguments.trace = None
    asks = [Ask(triton_binary(MODEL).encode(text), "text") for text in drawn(arguments)]
    ways: dict[str, Callable[[], Run]] = {name: partial(_measure, way, asks, arguments.callers) for name, way in WAYS.items()}
    results = interleave(ways, arguments.rounds, warm_ups=0)
    told = {name: {"median": asdict(median_of(runs)), "rounds": list(map(asdict, runs))} for name, runs in results.items()}
    document = {"scenario": "cache-faults", "commit": commit(), "machine": machine(), **vars(arguments), "ways": told}
    (PROJECT / "perf" / "results" / "cache-faults.json").write_text(json.dumps(document, indent=1, default=str) + "\n")
    _print(results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4_000)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def _measure(way: Callable[[], contextlib.AbstractContextManager[list[str]]], asks: list[Ask], callers: int) -> Run:
    with way() as flags:
        return measure(asks, callers, "--cache-bytes", _FEW_BYTES, *flags)


@contextlib.contextmanager
def _none() -> Iterator[list[str]]:
    yield []


@contextlib.contextmanager
def _well() -> Iterator[list[str]]:
    with _redis() as (port, _):
        yield _flags(port)


@contextlib.contextmanager
def _slow() -> Iterator[list[str]]:
    with _redis() as (port, _):
        is_over = threading.Event()

        def sleep() -> None:
            with redis.Redis(port=port) as client:
                while not is_over.wait(_WAKES_S):
                    client.execute_command("DEBUG", "SLEEP", str(_SLEEPS_S))

        thread = threading.Thread(target=sleep, name="slows-redis")
        thread.start()
        try:
            yield _flags(port)
        finally:
            is_over.set()
            thread.join()


@contextlib.contextmanager
def _held_still() -> Iterator[list[str]]:
    with _redis() as (port, pid):
        os.kill(pid, signal.SIGSTOP)
        try:
            yield _flags(port)
        finally:
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def _not_there() -> Iterator[list[str]]:
    yield _flags(free_port())


WAYS: dict[str, Callable[[], contextlib.AbstractContextManager[list[str]]]] = {
    "none": _none,
    "well": _well,
    "slow": _slow,
    "held still": _held_still,
    "not there": _not_there,
}


@contextlib.contextmanager
def _redis() -> Iterator[tuple[int, int]]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as folder:
        options = [
            "--save",
            "",
            "--dir",
            folder,
            "--maxmemory",
            "256mb",
            "--maxmemory-policy",
            "allkeys-lfu",
            "--enable-debug-command",
            "local",
        ]
        with running(["redis-server", "--port", str(port), "--bind", "127.0.0.1", *options], port) as pid:
            yield port, pid


def _flags(port: int) -> list[str]:
    return ["--cache-url", f"redis://127.0.0.1:{port}"]


def _print(results: dict[str, list[Run]]) -> None:
    table = Table("second level", "requests/s", "p50 ms", "p99 ms", "p99 / none's", "hits", "errors", "", box=None)
    for name, runs in results.items():
        run = median_of(runs)
        ratio = median_of([_Ratio(own.p99_ms / base.p99_ms) for own, base in zip(runs, results["none"], strict=True)]).ratio
        is_met = ratio <= _AT_MOST and not any(each.errors for each in runs)
        verdict = "" if name == "none" else f"{'[green]met' if is_met else '[red]not met'} (<= {_AT_MOST})"
        figures = (f"{run.requests_per_s:.0f}", f"{run.p50_ms:.2f}", f"{run.p99_ms:.2f}", f"{ratio:.2f}", f"{run.hit_ratio:.1%}")
        table.add_row(name, *figures, str(sum(each.errors for each in runs)), verdict)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
