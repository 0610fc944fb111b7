"""What waiting costs: 2,000 requests that wait for a slow model, and large uploads beside small requests, against the real Triton.

    python -m perf.waiting [--requests 2000] [--only http|grpc] [--rounds 3] [--duration-s 4] [--upload-mib-s 0]

Over HTTP every waiting request has a connection, over gRPC they share 20. Health checks and small requests to another model are
asked one at a time, every 5 ms. Uploads are 128 MiB each, two at a time, also straight at Triton and through nginx: what
they cost there is this machine's doing, not the gateway's. An answer that takes longer than 2 s counts as 2 s.
Writes perf/results/waiting.json and prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
import uvloop
from rich.console import Console
from rich.table import Table

from perf.gateway_report import commit, machine
from perf.peers.nginx import nginx
from perf.processes import PROJECT, Usage, exit_on_sigterm, require_programs, usage
from perf.serving import DOORS, Tidegate, attached
from perf.upstreams import triton
from perf.waiting_clients import CALLERS, Caller, upload_until

_ASKED = ("live", "ready", "small")
_GRPC_CONNECTIONS = 20
_STRAIGHT, _GATEWAY = "at Triton", "through the gateway"
_INTERVAL_S = 0.005
_GIVE_UP_S = 2.0
_SETTLE_S = 1.0
_MAX_DURATION_S = 6.0
_UPLOADS = 2
_HEALTH_P99_MS = 20.0
_SMALL_P99_RATIO = 2.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result."""

    door: str
    what: str
    before: float
    during: float
    unit: str
    target: str = ""
    is_met: bool | None = None


@dataclass(frozen=True, slots=True)
class Latencies:
    p50_ms: float
    p99_ms: float


def main() -> None:
    arguments = _arguments()
    exit_on_sigterm()
    figures: list[Figure] = []
    require_programs(("nginx",))
    with triton(("echo", "hold", "swallow")) as addresses:
        for door in [arguments.only] if arguments.only else DOORS:
            with (
                attached(addresses) as gateway,
                nginx(door, addresses[door]) as (nginx_address, _),
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                figures += runner.run(_measure_waiting(door, gateway, arguments))
                ways = {_STRAIGHT: addresses[door], "through nginx": nginx_address, _GATEWAY: gateway.addresses[door]}
                figures += runner.run(_measure_uploads(door, gateway, ways, arguments))
    _write(figures, arguments)
    _print(figures)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000, help="that wait at the same time")
    parser.add_argument("--only", choices=DOORS, help="one door")
    parser.add_argument("--rounds", type=int, default=3, help="of small requests without and with uploads")
    parser.add_argument("--duration-s", type=float, default=4.0, help=f"of each measurement; at most {_MAX_DURATION_S:g}")
    parser.add_argument("--upload-mib-s", type=float, default=0.0, help="of one upload over HTTP; 0 is as fast as loopback goes")
    arguments = parser.parse_args()
    if arguments.duration_s > _MAX_DURATION_S:
        parser.error("the waiting requests would pass the gateway's deadline of 30 s; give a shorter --duration-s")
    return arguments


async def _measure_waiting(door: str, gateway: Tidegate, arguments: argparse.Namespace) -> list[Figure]:
    address = gateway.addresses[door]
    async with _callers(door, address, 1) as (prober,):
        before = await _probe(prober, arguments.duration_s)
        idle = usage(gateway.pid)
        async with _waiting(door, address, arguments) as failures:
            during = await _probe(prober, arguments.duration_s)
            busy = usage(gateway.pid)
    for text, count in Counter(failures).most_common(3):
        print(f"{count} of {arguments.requests} waiting requests failed: {text}", file=sys.stderr)
    return [
        Figure(door, "waiting: requests that failed", 0, len(failures), "", "none", not failures),
        *_usage_figures(door, idle, busy),
        *(figure for what in _ASKED for figure in _latency_figures(door, what, before[what], during[what])),
    ]


@contextlib.asynccontextmanager
async def _waiting(door: str, address: str, arguments: argparse.Namespace) -> AsyncIterator[list[str]]:
    """Inside, all the requests wait; after it they have ended, and the list says why some failed."""
    failures: list[str] = []

    async def wait(asked: Awaitable[None]) -> None:
        try:
            await asked
        except (RuntimeError, OSError, asyncio.IncompleteReadError) as exc:
            failures.append(str(exc))

    hold_s = 3 * _SETTLE_S + len(_ASKED) * (arguments.duration_s + _GIVE_UP_S)
    count = _GRPC_CONNECTIONS if door == "grpc" else arguments.requests
    async with _callers(door, address, count) as callers, asyncio.TaskGroup() as tasks:
        held = tasks.create_task(wait(callers[0].hold(hold_s)), name="hold")
        await asyncio.sleep(_SETTLE_S)
        for number in range(1, arguments.requests):
            tasks.create_task(wait(callers[number % count].ask("behind")), name=f"behind {number}")
        await asyncio.sleep(_SETTLE_S)
        yield failures
        if held.done():
            raise RuntimeError("the requests no longer waited when the last figure was taken")


async def _probe(caller: Caller, each_s: float) -> dict[str, Latencies]:
    return {what: await _latencies(caller, what, each_s) for what in _ASKED}


async def _measure_uploads(door: str, gateway: Tidegate, ways: Mapping[str, str], arguments: argparse.Namespace) -> list[Figure]:
    """Small requests without and with uploads in turns; `ways` has the address by the way there."""
    alone: dict[str, list[Latencies]] = {way: [] for way in ways}
    beside: dict[str, list[Latencies]] = {way: [] for way in ways}
    idle, peak_bytes = usage(gateway.pid), 0
    for _ in range(arguments.rounds):
        for way, address in ways.items():
            async with _callers(door, address, 1) as (caller,):
                alone[way].append(await _latencies(caller, "small", arguments.duration_s))
                async with _uploading(door, address, arguments.upload_mib_s):
                    beside[way].append(await _latencies(caller, "small", arguments.duration_s))
                    peak_bytes = max(peak_bytes, usage(gateway.pid).rss_bytes)
    figures = [_upload_figure(door, way, [run.p99_ms for run in alone[way]], [run.p99_ms for run in beside[way]]) for way in ways]
    return [*figures, Figure(door, "uploads: gateway's memory", idle.rss_bytes / 2**20, peak_bytes / 2**20, "MiB")]


@contextlib.asynccontextmanager
async def _callers(door: str, address: str, count: int) -> AsyncIterator[Sequence[Caller]]:
    callers = [CALLERS[door](address) for _ in range(count)]
    try:
        yield callers
    finally:
        for caller in callers:
            await caller.close()


@contextlib.asynccontextmanager
async def _uploading(door: str, address: str, mib_per_s: float) -> AsyncIterator[None]:
    stop = threading.Event()
    async with asyncio.TaskGroup() as tasks:
        for number in range(_UPLOADS):
            tasks.create_task(asyncio.to_thread(upload_until, door, address, stop, mib_per_s), name=f"upload {number}")
        try:
            await asyncio.sleep(_SETTLE_S)
            yield
        finally:
            stop.set()


async def _latencies(caller: Caller, what: str, duration_s: float) -> Latencies:
    """Ask every 5 ms. One that is not answered in 2 s counts as that, and ends it: what comes after would only wait behind it."""
    measured_s: list[float] = []
    until_s = time.perf_counter() + duration_s
    while (sent_s := time.perf_counter()) < until_s:
        try:
            async with asyncio.timeout(_GIVE_UP_S):
                await caller.ask(what)
        except TimeoutError:
            measured_s.append(_GIVE_UP_S)
            break
        measured_s.append(time.perf_counter() - sent_s)
        await asyncio.sleep(max(0.0, _INTERVAL_S - measured_s[-1]))
    p50_s, p99_s = np.percentile(measured_s, [50, 99])
    return Latencies(float(p50_s) * 1e3, float(p99_s) * 1e3)


def _usage_figures(door: str, idle: Usage, busy: Usage) -> list[Figure]:
    return [
        Figure(door, "waiting: gateway's threads", idle.threads, busy.threads, "", "constant", idle.threads == busy.threads),
        Figure(door, "waiting: gateway's memory", idle.rss_bytes / 2**20, busy.rss_bytes / 2**20, "MiB"),
    ]


def _latency_figures(door: str, what: str, before: Latencies, during: Latencies) -> list[Figure]:
    name = f"waiting: {what}"
    is_met, target = (None, "") if what == "small" else (during.p99_ms <= _HEALTH_P99_MS, f"<= {_HEALTH_P99_MS:g}")
    return [
        Figure(door, f"{name} p50", before.p50_ms, during.p50_ms, "ms"),
        Figure(door, f"{name} p99", before.p99_ms, during.p99_ms, "ms", target, is_met),
    ]


def _upload_figure(door: str, way: str, alone_ms: list[float], beside_ms: list[float]) -> Figure:
    before, during = median(alone_ms), median(beside_ms)
    is_met, target = (None, "") if way != _GATEWAY else (during <= _SMALL_P99_RATIO * before, f"<= {_SMALL_P99_RATIO:g}x")
    return Figure(door, f"uploads: small p99 {way}", before, during, "ms", target, is_met)


def _write(figures: list[Figure], arguments: argparse.Namespace) -> None:
    document = {
        "scenario": "waiting",
        "commit": commit(),
        "machine": machine(),
        **vars(arguments),
        "figures": [asdict(each) for each in figures],
    }
    path = PROJECT / "perf" / "results" / "waiting.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def _print(figures: list[Figure]) -> None:
    table = Table("door", "what", "without", "with", "", "wanted", "", box=None)
    for each in figures:
        verdict = {None: "", True: "[green]met", False: "[red]not met"}[each.is_met]
        table.add_row(each.door, each.what, f"{each.before:.4g}", f"{each.during:.4g}", each.unit, each.target, verdict)
    Console(width=110).print(table)


if __name__ == "__main__":
    sys.exit(main())
