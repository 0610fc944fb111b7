"""What hedged requests gain and cost: a model that straggles on three real Tritons, asked at several loads, with hedging, without, and
without once more, whose difference is the noise of this machine.

    python -m perf.hedging [--rounds 5] [--requests 10000] [--works stragglers even ...] [--loads 0.2 0.8 ...]

The model sleeps, so that client, gateway and Tritons, which share this machine's cores, leave each other alone. Requests come over gRPC,
independently of each other. Before each work is measured, so many requests are sent that the gateway knows its latencies.
Writes perf/results/hedging.json and .md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from control_plane.app.stores import open_state_store
from control_plane.objects.domain.route import HedgingPolicy, Route
from control_plane.objects.objects import Objects
from perf.hedging.clients import Work, ask
from perf.hedging.report import BIMODAL, LOADS, OFF, OFF_AGAIN, ON, TWICE, WAYS, WORKS, Case, Report, Run
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.servers.processes import PROJECT
from perf.servers.serving import Tidegate, tidegate

_MODEL, _SERVERS, _INSTANCES = "straggle", 3, 2
_POLICIES = {OFF: HedgingPolicy(is_on=False), ON: HedgingPolicy(is_on=True), TWICE: HedgingPolicy(is_on=True, twice_from_s=0.2)}
_SETTLE_S = 1.0
"""Whatever was cancelled has ended then, and its statistics can be read."""
_FEWER = 10
"""Times fewer requests of the work that takes so much longer."""
_READY_S = 60.0


def main() -> None:
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--requests", type=int, default=10_000, help="of one case in one round")
    parser.add_argument("--learn", type=int, default=5_000, help="requests before, by which the gateway learns latencies")
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--loads", nargs="+", type=float, default=None, help="instead of each work's own; 1 is all that the servers can do")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as name, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as client:
        state = Path(name)
        asyncio.run(_make_routes(state))
        flags = ["--model-repository", str(PROJECT / "perf" / "models"), "--load", _MODEL, "--servers", str(_SERVERS)]
        flags += ["--model-parameter", f"{_MODEL}:tidegate_min_replicas={_SERVERS}"]
        with tidegate(flags, state=state) as started:
            _wait_for_replicas(started)
            _learn(client, started, arguments)
            ways = {
                Case(work, load, way): partial(_run, client, started, Case(work, load, way), arguments)
                for work in arguments.works
                for load in arguments.loads or LOADS[work]
                for way in WAYS[work]
            }
            return Result(interleave(ways, arguments.rounds))


async def _make_routes(state: Path) -> None:
    """A route for each way: one gateway serves all of them in turns."""
    store = await open_state_store(None, state)
    try:
        for way, policy in _POLICIES.items():
            await Objects(store).put(Route(_route(way), _MODEL, hedging=policy))
    finally:
        await store.close()


def _route(way: str) -> str:
    return f"straggle-{OFF if way == OFF_AGAIN else way}"


def _wait_for_replicas(started: Tidegate) -> None:
    """Raises RuntimeError: the model is not ready everywhere."""
    give_up_s = time.monotonic() + _READY_S
    while _counted(started, 'tidegate_fleet_replicas{server="[^"]+",state="READY"}') < _SERVERS:
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"{_MODEL} is not ready on {_SERVERS} servers after {_READY_S:g} s")
        time.sleep(0.2)


def _learn(client: ProcessPoolExecutor, started: Tidegate, arguments: argparse.Namespace) -> None:
    for work in arguments.works:
        harness.say(f"{work}: learning")
        _ask(client, started, WORKS[work], ON, _requests(work, arguments.learn), load=0.3)


def _requests(work: str, count: int) -> int:
    return count // _FEWER if work == BIMODAL else count


def _run(client: ProcessPoolExecutor, started: Tidegate, case: Case, arguments: argparse.Namespace) -> Run:
    harness.say(f"{case.work} at {case.load:.0%}, {case.way}")
    time.sleep(_SETTLE_S)
    executions, compute_ms, hedged = _executions(started), _compute_ms(started), _hedged(started)
    requests = _requests(case.work, arguments.requests)
    answered = _ask(client, started, WORKS[case.work], case.way, requests, load=case.load)
    time.sleep(_SETTLE_S)
    latencies_ms = np.array(answered.latencies_ms)
    return Run(
        p50_ms=answered.percentile_ms(50),
        p99_ms=answered.percentile_ms(99),
        p999_ms=answered.percentile_ms(99.9),
        mean_ms=float(latencies_ms.mean()),
        std_ms=float(latencies_ms.std()),
        executions=(_executions(started) - executions) / requests,
        compute_ms=(_compute_ms(started) - compute_ms) / requests,
        hedged=(_hedged(started) - hedged) / requests,
        errors=answered.errors,
    )


def _ask(client: ProcessPoolExecutor, started: Tidegate, work: Work, way: str, requests: int, *, load: float):  # type: ignore[no-untyped-def]
    per_s = load * _SERVERS * _INSTANCES / work.mean_s
    frame = work.frame(_route(way))
    # In each round and each way other moments, but the same ones for the same command.
    return client.submit(ask, started.addresses["grpc"], frame, requests=requests, per_s=per_s, seed=requests).result()


def _hedged(started: Tidegate) -> float:
    return sum(_counted(started, f'tidegate_fleet_hedges_total{{result="{result}"}}') for result in ("won", "lost", "failed"))


def _executions(started: Tidegate) -> float:
    return _stats(started)["execution_count"]


def _compute_ms(started: Tidegate) -> float:
    return _stats(started)["inference_stats"]["compute_infer"]["ns"] / 1e6


def _stats(started: Tidegate):  # type: ignore[no-untyped-def]
    with urllib.request.urlopen(f"http://{started.addresses['http']}/v2/models/{_MODEL}/stats", timeout=10) as answer:
        return json.load(answer)["model_stats"][0]


def _counted(started: Tidegate, sample: str) -> float:
    """The sum of a metric's samples; the name and labels are a pattern but for their braces."""
    pattern = sample.replace("{", r"\{").replace("}", r"\}")
    with urllib.request.urlopen(started.metrics, timeout=10) as answer:
        return sum(float(value) for value in re.findall(rf"^{pattern} (\S+)$", answer.read().decode(), re.MULTILINE))


if __name__ == "__main__":
    main()
