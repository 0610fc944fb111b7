"""What hedged requests gain and cost: a model that straggles on three real Tritons, asked at several loads, with hedging, without, and
without once more, whose difference is the noise of this machine.

    python -m perf.hedging [--rounds 5] [--requests 10000] [--works stragglers even ...] [--loads 0.2 0.8 ...] [--half-s 90]

The model sleeps, so that client, gateway and Tritons, which share this machine's cores, leave each other alone. Requests come over gRPC,
independently of each other. Before each work is measured, so many requests are sent that the gateway knows its latencies, and before
each case with hedging as many as it remembers, at that load.
Beside each run stands what the simulator foretells of it. At last half of all requests go to two servers for a while, and processes and
memory are compared. Writes perf/results/hedging.json and .md.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from math import nan
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from control_plane.app.stores import open_state_store
from control_plane.objects.domain.route import HedgingPolicy, Route
from control_plane.objects.objects import Objects
from perf.hedging.clients import Answered, Work, ask
from perf.hedging.counters import Counters
from perf.hedging.forecast import LEARNED_BY, Forecast, Sample, foretold
from perf.hedging.report import BIMODAL, HALF, LOADS, OFF, OFF_AGAIN, ON, SLOW, TWICE, WAYS, WORKS, Case, Report, Run
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.servers.processes import PROJECT, tree, usage
from perf.servers.serving import Tidegate, tidegate

_MODEL, _SERVERS, _INSTANCES = "straggle", 3, 2
_ALWAYS_TWICE = "always twice"
_POLICIES = {
    OFF: HedgingPolicy(is_on=False),
    ON: HedgingPolicy(is_on=True),
    TWICE: HedgingPolicy(is_on=True, twice_from_s=0.2),
    _ALWAYS_TWICE: HedgingPolicy(is_on=False, twice_from_s=1e-6),
}
_SETTLE_S = 1.0
"""Whatever was cancelled has ended then, and its statistics can be read."""
_HEEDS_AFTER_S = 0.005
"""The model looks every 10 ms whether it was cancelled."""
_FEWER = 50
"""Times fewer requests of the work that takes so much longer."""
_HALF_LOAD, _HALF_PART_S = 0.25, 30.0


def main() -> None:
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--requests", type=int, default=10_000, help="of one case in one round")
    parser.add_argument("--learn", type=int, default=5_000, help="requests before, by which the gateway learns latencies")
    parser.add_argument("--works", nargs="+", choices=list(LOADS), default=[work for work in LOADS if work != SLOW])
    parser.add_argument("--loads", nargs="+", type=float, default=None, help="instead of each work's own; 1 is all that the servers can do")
    parser.add_argument("--half-s", type=float, default=90.0, help="how long half of all requests go to two servers; 0 for not at all")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as name, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as client:
        state = Path(name)
        asyncio.run(_make_routes(state))
        flags = ["--model-repository", str(PROJECT / "perf" / "models"), "--load", _MODEL, "--servers", str(_SERVERS)]
        flags += ["--model-parameter", f"{_MODEL}:tidegate_min_replicas={_SERVERS}"]
        with tidegate(flags, state=state) as started:
            runs = _Runs(client, started, arguments)
            ways = {
                Case(work, load, way): partial(runs.run, Case(work, load, way))
                for work in arguments.works
                for load in arguments.loads or LOADS[work]
                for way in WAYS[work]
            }
            runs.learn()
            found = interleave(ways, arguments.rounds)
            return Result(found, more={"half": runs.half(arguments.half_s)} if arguments.half_s else {})


async def _make_routes(state: Path) -> None:
    """A route for each way: one gateway serves all of them in turns."""
    store = await open_state_store(None, state)
    try:
        for way, policy in _POLICIES.items():
            await Objects(store).put(Route(_route(way), _MODEL, hedging=policy))
    finally:
        await store.close()


def _route(way: str) -> str:
    return f"straggle-{OFF if way == OFF_AGAIN else way.replace(' ', '-')}"


class _Runs:
    """Runs of one started tidegate, whose client is a process of its own."""

    def __init__(self, client: ProcessPoolExecutor, started: Tidegate, arguments: argparse.Namespace) -> None:
        self._client, self._started, self._arguments = client, started, arguments
        self._counters = Counters(started, _MODEL)
        self._counters.wait_for_replicas(_SERVERS)
        self._samples: dict[str, tuple[float, Sample]] = {}
        """Of each work the load and latencies of its last run without hedging at the least load."""

    def learn(self) -> None:
        for work in self._arguments.works:
            harness.say(f"{work}: learning")
            self._ask(WORKS[work], ON, requests=_requests(work, self._arguments.learn), load=0.3)

    def run(self, case: Case) -> Run:
        harness.say(f"{case.work} at {case.load:.0%}, {case.way}")
        requests = _requests(case.work, self._arguments.requests)
        if case.way in (ON, TWICE):  # what was learned last was so at another load, with other delays than the forecast's
            learned_by = _requests(case.work, min(LEARNED_BY, self._arguments.learn))
            self._ask(WORKS[case.work], case.way, requests=learned_by, load=case.load)
        time.sleep(_SETTLE_S)
        before = self._counters.read()
        answered = self._ask(WORKS[case.work], case.way, requests=requests, load=case.load)
        time.sleep(_SETTLE_S)
        counted = _difference(self._counters.read(), before, requests)
        latencies_ms = np.array(answered.latencies_ms)
        if case.way == OFF and case.load <= self._samples.get(case.work, (case.load,))[0]:
            kinds_s = WORKS[case.work].kinds_s
            self._samples[case.work] = case.load, Sample((latencies_ms / 1e3).tolist(), counted["compute_ms"] / 1e3, kinds_s)
        forecast = self._forecast(case, requests)
        return Run(
            p50_ms=answered.percentile_ms(50),
            p99_ms=answered.percentile_ms(99),
            p999_ms=answered.percentile_ms(99.9),
            mean_ms=float(latencies_ms.mean()),
            std_ms=float(latencies_ms.std()),
            foretold_p999_ms=1e3 * forecast.p999_s,
            foretold_executions=forecast.executions,
            errors=answered.errors,
            **counted,
        )

    def half(self, for_s: float) -> Mapping[str, float]:
        """Send every second request to two servers; processes and memory before and after, and what was sent twice."""
        work, sent = WORKS[HALF], 0
        requests = round(min(_HALF_PART_S, for_s) * self._per_s(work, _HALF_LOAD))
        self._ask(work, _ALWAYS_TWICE, OFF, requests=requests, load=_HALF_LOAD)  # until memory is as it stays
        processes, was = len(tree(self._started.pid)), usage(self._started.pid)
        before, errors = self._counters.read(), 0
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s:
            harness.say(f"half of all requests go to two servers, {until_s - time.monotonic():.0f} s more")
            answered = self._ask(work, _ALWAYS_TWICE, OFF, requests=requests, load=_HALF_LOAD)
            sent, errors = sent + requests, errors + answered.errors
        time.sleep(_SETTLE_S)
        hedged = self._counters.read()["hedged"] - before["hedged"]
        now = usage(self._started.pid)
        return {
            "seconds": for_s,
            "requests": sent,
            "errors": errors,
            "hedged": hedged / sent,
            "more_processes": len(tree(self._started.pid)) - processes,
            "more_threads": now.threads - was.threads,
            "was_mib": was.rss_bytes / 2**20,
            "more_memory": now.rss_bytes / was.rss_bytes - 1,
        }

    def _forecast(self, case: Case, requests: int) -> Forecast:
        if case.way == OFF_AGAIN or case.work not in self._samples:
            return Forecast(nan, nan)
        work = WORKS[case.work]
        return foretold(
            self._samples[case.work][1], _POLICIES[case.way], requests=requests, per_s=self._per_s(work, case.load), servers=_SERVERS,
            instances=_INSTANCES, heeds_after_s=_HEEDS_AFTER_S if work.heeds else None, seed=requests,
        )  # fmt: skip

    def _ask(self, work: Work, *ways: str, requests: int, load: float) -> Answered:
        frames = [work.frame(_route(way)) for way in ways]
        # In each round and each way other moments, but the same ones for the same command.
        asked = self._client.submit(
            ask, self._started.addresses["grpc"], frames, requests=requests, per_s=self._per_s(work, load), seed=requests
        )
        return asked.result()

    def _per_s(self, work: Work, load: float) -> float:
        return load * _SERVERS * _INSTANCES / work.mean_s


def _requests(work: str, count: int) -> int:
    return count // _FEWER if work == BIMODAL else count


def _difference(after: Mapping[str, float], before: Mapping[str, float], requests: int) -> dict[str, float]:
    """What was counted meanwhile, for each request."""
    return {name: (count - before[name]) / requests for name, count in after.items()}


if __name__ == "__main__":
    main()
