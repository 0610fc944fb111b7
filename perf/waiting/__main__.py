"""What waiting costs: 2,000 requests that wait for a slow model, and large uploads beside small requests, against the real Triton.

    python -m perf.waiting [--requests 2000] [--only http|grpc] [--rounds 3] [--seconds 3.5] [--upload-mib 128] [--upload-mib-s 0]

Over HTTP every waiting request has a connection, over gRPC they share 20. Health checks and small requests to another model are
asked in turns, one at a time, every 5 ms. Uploads are 128 MiB each, two at a time, from processes that yield as if they were on
another machine; also straight at Triton and through nginx: what they cost there is this machine's doing, not the gateway's. An
answer that takes longer than 1 s counts as 1 s.
Writes perf/results/waiting.json and .md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial

import numpy as np
import uvloop

from perf.measurement import harness
from perf.measurement.report import Result
from perf.peers.nginx import nginx
from perf.servers.processes import usage
from perf.servers.serving import PROTOCOLS, Tidegate, attached
from perf.servers.upstreams import triton
from perf.servers.yielding import yielding
from perf.waiting.clients import CALLERS, Caller, ready, upload_for
from perf.waiting.report import (
    FAILED,
    GATEWAY,
    MEMORY,
    NGINX,
    STRAIGHT,
    THREADS,
    UPLOAD_MEMORY,
    Case,
    Report,
    Run,
    upload_p99,
    waiting_p99,
)

_SMALL = "small"
_ASKED = ("live", "ready", _SMALL)
_GRPC_CONNECTIONS = 20
_INTERVAL_S = 0.005
_GIVE_UP_S = 1.0
_SETTLE_S = 1.0
_MAX_SECONDS = 6.0
_UPLOADS = 2
_UPLOADS_SETTLE_S = 1.0
"""Until they are under way: each makes its message first."""
_TAIL_S = 0.2
"""Seconds for which uploads go on after small requests were measured, so that they do not end meanwhile."""

Runs = dict[Case, list[Run]]


def main() -> None:
    parser = harness.parser(__doc__, rounds=3, seconds=3.5)
    parser.add_argument("--requests", type=int, default=2000, help="that wait at the same time")
    parser.add_argument("--only", choices=PROTOCOLS, help="one protocol")
    parser.add_argument("--upload-mib", type=int, default=128, help="of one upload")
    parser.add_argument("--upload-mib-s", type=float, default=0.0, help="of one upload over HTTP; 0 is as fast as loopback goes")
    arguments = parser.parse_args()
    if arguments.seconds > _MAX_SECONDS:
        parser.error(f"the waiting requests would pass the gateway's deadline of 30 s; --seconds may be {_MAX_SECONDS:g} at most")
    harness.carry_out(Report, arguments, _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    runs: Runs = {}
    with triton(("echo", "hold", "swallow")) as addresses, yielding(_UPLOADS) as uploaders:
        for started in [uploaders.submit(ready) for _ in range(_UPLOADS)]:
            started.result()
        for protocol in [arguments.only] if arguments.only else PROTOCOLS:
            with (
                attached(addresses) as gateway,
                nginx(protocol, addresses[protocol]) as (nginx_address, _),
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                ways = {STRAIGHT: addresses[protocol], NGINX: nginx_address, GATEWAY: gateway.addresses[protocol]}
                for number in range(arguments.rounds):
                    harness.say(f"{protocol}, round {number + 1}")
                    for what, run in runner.run(_round(uploaders, protocol, gateway, ways, arguments)).items():
                        runs.setdefault(Case(protocol, what), []).append(run)
    return Result(runs)


async def _round(
    uploaders: Executor, protocol: str, gateway: Tidegate, ways: Mapping[str, str], arguments: argparse.Namespace
) -> dict[str, Run]:
    """Measure one round; the runs are by what was measured."""
    waiting = await _measure_waiting(protocol, gateway, arguments)
    return waiting | await _measure_uploads(uploaders, protocol, gateway, ways, arguments)


async def _measure_waiting(protocol: str, gateway: Tidegate, arguments: argparse.Namespace) -> dict[str, Run]:
    address = gateway.addresses[protocol]
    async with _callers(protocol, address, 1) as (prober,):
        before = await _p99s_ms(prober, _ASKED, arguments.seconds)
        idle = usage(gateway.pid)
        async with _waiting(protocol, address, arguments) as failures:
            during = await _p99s_ms(prober, _ASKED, arguments.seconds)
            busy = usage(gateway.pid)
    for text, count in Counter(failures).most_common(3):
        print(f"{count} of {arguments.requests} waiting requests failed: {text}", file=sys.stderr)
    return {
        FAILED: Run(0, len(failures)),
        THREADS: Run(idle.threads, busy.threads),
        MEMORY: Run(idle.rss_bytes / 2**20, busy.rss_bytes / 2**20),
        **{waiting_p99(what): Run(before[what], during[what]) for what in _ASKED},
    }


@contextlib.asynccontextmanager
async def _waiting(protocol: str, address: str, arguments: argparse.Namespace) -> AsyncIterator[list[str]]:
    """Inside, all the requests wait; after it they have ended, and the list says why some failed."""
    failures: list[str] = []

    async def wait(asked: Awaitable[None]) -> None:
        try:
            await asked
        except (RuntimeError, OSError, asyncio.IncompleteReadError) as exc:
            failures.append(str(exc))

    hold_s = 2.5 * _SETTLE_S + arguments.seconds + len(_ASKED) * _GIVE_UP_S
    count = _GRPC_CONNECTIONS if protocol == "grpc" else arguments.requests
    async with _callers(protocol, address, count) as callers, asyncio.TaskGroup() as tasks:
        held = tasks.create_task(wait(callers[0].hold(hold_s)), name="hold")
        await asyncio.sleep(_SETTLE_S)
        for number in range(1, arguments.requests):
            tasks.create_task(wait(callers[number % count].ask("behind")), name=f"behind {number}")
        await asyncio.sleep(_SETTLE_S)
        yield failures
        if held.done():
            raise RuntimeError("the requests no longer waited when the last figure was taken")


async def _measure_uploads(
    uploaders: Executor, protocol: str, gateway: Tidegate, ways: Mapping[str, str], arguments: argparse.Namespace
) -> dict[str, Run]:
    """Small requests without and with uploads; `ways` has the address by the way there."""
    runs: dict[str, Run] = {}
    idle_bytes = peak_bytes = usage(gateway.pid).rss_bytes
    for way, address in ways.items():
        async with _callers(protocol, address, 1) as (caller,):
            alone = await _p99s_ms(caller, (_SMALL,), arguments.seconds / 2)
            async with _uploading(uploaders, protocol, address, arguments):
                beside = await _p99s_ms(caller, (_SMALL,), arguments.seconds)
                peak_bytes = max(peak_bytes, usage(gateway.pid).rss_bytes)
        runs[upload_p99(way)] = Run(alone[_SMALL], beside[_SMALL])
    return runs | {UPLOAD_MEMORY: Run(idle_bytes / 2**20, peak_bytes / 2**20)}


@contextlib.asynccontextmanager
async def _callers(protocol: str, address: str, count: int) -> AsyncIterator[Sequence[Caller]]:
    callers = [CALLERS[protocol](address) for _ in range(count)]
    try:
        yield callers
    finally:
        for caller in callers:
            await caller.close()


@contextlib.asynccontextmanager
async def _uploading(uploaders: Executor, protocol: str, address: str, arguments: argparse.Namespace) -> AsyncIterator[None]:
    """Inside, for `--seconds`, all of them upload."""
    lasts_s = _UPLOADS_SETTLE_S + arguments.seconds + _TAIL_S
    upload = partial(upload_for, protocol, address, lasts_s, mib=arguments.upload_mib, mib_per_s=arguments.upload_mib_s)
    uploads = [asyncio.get_running_loop().run_in_executor(uploaders, upload) for _ in range(_UPLOADS)]
    await asyncio.sleep(_UPLOADS_SETTLE_S)
    yield
    await asyncio.gather(*uploads)


async def _p99s_ms(caller: Caller, asked: Sequence[str], seconds: float) -> dict[str, float]:
    """Ask for these in turns, every 5 ms. One that is not answered in 1 s counts as that, and is asked for no more: what comes
    after would only wait behind it."""
    measured_s: dict[str, list[float]] = {what: [] for what in asked}
    left = deque(asked)
    until_s = time.perf_counter() + seconds
    while left and (sent_s := time.perf_counter()) < until_s:
        what = left.popleft()
        try:
            async with asyncio.timeout(_GIVE_UP_S):
                await caller.ask(what)
        except TimeoutError:
            measured_s[what].append(_GIVE_UP_S)
            continue
        left.append(what)
        took_s = time.perf_counter() - sent_s
        measured_s[what].append(took_s)
        await asyncio.sleep(max(0.0, _INTERVAL_S - took_s))
    return {what: float(np.percentile(of_one_s, 99)) * 1e3 for what, of_one_s in measured_s.items()}


if __name__ == "__main__":
    main()
