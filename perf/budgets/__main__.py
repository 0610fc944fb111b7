"""What a latency budget gains: an accurate model of 40 ms and a fast one of 4 ms behind one route, at loads below and far beyond what the
accurate one can do, beside each of them alone.

    python -m perf.budgets [--rounds 5] [--seconds 5] [--loads 0.5 0.9 2 5] [--budget-ms 100]

Requests come over gRPC, independently of each other, and have a second; the models sleep, so that client, gateway and Triton leave each
other alone. Who answered is counted by the gateway. Writes perf/results/budgets.json and .md.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from math import nan
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from control_plane.app.stores import open_state_store
from control_plane.objects.domain.route import FasterModel, Route
from control_plane.objects.objects import Objects
from perf.budgets.report import DIAL, LARGE, LARGE_PER_S, LOADS, SMALL, WAYS, Case, Report, Run
from perf.load.echo_requests import framed, grpc_request
from perf.load.open_loop import ask
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.servers.processes import PROJECT
from perf.servers.serving import Tidegate, tidegate

_DEADLINE_S = 1.0
_LEARNS, _LEARNS_AT = 3, 0.5
"""Runs before all others, and their load: what models cost is not known at once."""
_NAMES = {DIAL: "dial", LARGE: "large", SMALL: "small"}
_ANSWERS = re.compile(r'^tidegate_latency_budget_requests_total\{model="large",result="\w+",route="dial"\} (\S+)$', re.MULTILINE)


def main() -> None:
    parser = harness.parser(__doc__, rounds=5, seconds=5.0)
    parser.add_argument("--loads", nargs="+", type=float, default=list(LOADS), help="1 is all that the accurate model can do")
    parser.add_argument("--budget-ms", type=float, default=100.0)
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as name, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as client:
        state = Path(name)
        asyncio.run(_make_route(state, arguments.budget_ms / 1e3))
        flags = ["--model-repository", str(PROJECT / "perf" / "models"), "--load", "large", "--load", "small"]
        with tidegate(flags, state=state) as started:
            for _ in range(_LEARNS):
                _run(client, started, Case(DIAL, _LEARNS_AT), arguments)
            cases = [Case(way, load) for load in arguments.loads for way in WAYS]
            return Result(interleave({case: partial(_run, client, started, case, arguments) for case in cases}, arguments.rounds))


async def _make_route(state: Path, budget_s: float) -> None:
    store = await open_state_store(None, state)
    try:
        await Objects(store).put(Route("dial", "large", faster=(FasterModel("small"),), latency_budget_s=budget_s))
    finally:
        await store.close()


def _run(client: ProcessPoolExecutor, started: Tidegate, case: Case, arguments: argparse.Namespace) -> Run:
    harness.say(f"{case.way} at {case.load:g}x")
    per_s = case.load * LARGE_PER_S
    requests = round(per_s * arguments.seconds)
    frame = framed(grpc_request(_NAMES[case.way], "X", np.zeros(4, dtype=np.float32)))
    before = _by_large(started)
    asked = client.submit(ask, started.addresses["grpc"], [frame], requests=requests, per_s=per_s, seed=requests, deadline_s=_DEADLINE_S)
    good_ms = asked.result().good_ms
    by_large = {DIAL: _by_large(started) - before, LARGE: len(good_ms), SMALL: 0}[case.way]
    return Run(
        within=sum(each <= arguments.budget_ms for each in good_ms) / requests,
        accurate=by_large / requests,
        p50_ms=float(np.percentile(good_ms, 50)) if good_ms else nan,
        p99_ms=float(np.percentile(good_ms, 99)) if good_ms else nan,
        refused=1 - len(good_ms) / requests,
    )


def _by_large(started: Tidegate) -> float:
    with urllib.request.urlopen(started.metrics, timeout=10) as answer:
        return sum(map(float, _ANSWERS.findall(answer.read().decode())))


if __name__ == "__main__":
    main()
