"""What callers feel of a second level that fails: a Redis that is well, slow, held still or not there at all, beside none.

    python -m perf.cache_faults [--requests 2500] [--callers 8] [--rounds 5]

The requests of `perf.repeats`, with a first level of a few answers only, so that everything else is asked of Redis. The slow one sleeps
50 ms of every 60. Writes perf/results/cache-faults.json and .md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import redis

from perf.cache_faults.report import NONE, Case, Report
from perf.load.closed_loop import Ask
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.repeats.__main__ import asks, drawn, measure
from perf.repeats.report import Run
from perf.servers.processes import free_port, running

_FEW_BYTES = "50000"
_SLEEPS_S, _WAKES_S = 0.05, 0.01


def main() -> None:
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--requests", type=int, default=2_500)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--levels", nargs="+", choices=WAYS, default=list(WAYS), help="of which `none` is what others are compared with")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    asked = asks(drawn(arguments.requests))
    ways = {Case(name): partial(_run, WAYS[name], asked, arguments.callers) for name in arguments.levels}
    return Result(interleave(ways, arguments.rounds))


def _run(way: Callable[[], contextlib.AbstractContextManager[list[str]]], asked: Sequence[Ask], callers: int) -> Run:
    with way() as flags:
        return measure(asked, callers, ["--cache-bytes", _FEW_BYTES, *flags])


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
    NONE: _none,
    "well": _well,
    "slow": _slow,
    "held still": _held_still,
    "not there": _not_there,
}


@contextlib.contextmanager
def _redis() -> Iterator[tuple[int, int]]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as folder:
        options = ["--save", "", "--dir", folder, "--maxmemory", "256mb", "--maxmemory-policy", "allkeys-lfu"]
        options += ["--enable-debug-command", "local"]
        with running(["redis-server", "--port", str(port), "--bind", "127.0.0.1", *options], port) as pid:
            yield port, pid


def _flags(port: int) -> list[str]:
    return ["--cache-url", f"redis://127.0.0.1:{port}"]


if __name__ == "__main__":
    main()
