"""What hedged requests gain and cost: a model that straggles on three real Tritons, asked at several loads, with hedging, without, and
without once more, whose difference is the noise of this machine.

    python -m perf.hedging [--rounds 5] [--requests 1200] [--works stragglers even ...] [--loads 0.2 0.8 ...] [--half-s 45]

The model sleeps, so that client, gateway and Tritons, which share this machine's cores, leave each other alone. Requests come over gRPC,
independently of each other. Each work at each load has a size of its own, so the gateway learns the latencies of each apart; before all
it is sent as many requests of each as it remembers.
Beside each run stands what the simulator foretells of it. At last half of all requests go to two servers for a while, and processes and
memory are compared. Writes perf/results/hedging.json and .md.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from math import nan
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from control_plane.app.stores import open_state_store
from control_plane.objects.domain.route import HedgingPolicy, Route
from control_plane.objects.objects import Objects
from perf.hedging.counters import Counters
from perf.hedging.forecast import LEARNED_BY, Forecast, Sample, foretold
from perf.hedging.report import BIMODAL, EVEN, HALF, LOADS, OFF, OFF_AGAIN, ON, STRAGGLERS, TWICE, WAYS, WORKS, Case, Report, Run
from perf.hedging.work import Work
from perf.load.open_loop import Answered, ask
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
_SETTLE_S = 0.2
"""Whatever was cancelled has ended so long after the longest time that a request may take, and its statistics can be read."""
_HEEDS_AFTER_S = 0.005
"""The model looks every 10 ms whether it was cancelled."""
_FEWER = 50
"""Times fewer requests of the work that takes so much longer."""
_HALF_LOAD, _HALF_PART_S = 0.25, 15.0
_LEAST_NUMBERS = 4


def main() -> None:
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--requests", type=int, default=1_200, help="of one case in one round")
    parser.add_argument("--learn", type=int, default=LEARNED_BY, help="requests before, by which the gateway learns latencies")
    parser.add_argument("--works", nargs="+", choices=list(LOADS), default=[STRAGGLERS, EVEN], help="those that have targets, by default")
    parser.add_argument("--loads", nargs="+", type=float, default=None, help="instead of each work's own; 1 is all that the servers can do")
    parser.add_argument("--half-s", type=float, default=45.0, help="how long half of all requests go to two servers; 0 for not at all")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as name, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as client:
        state = Path(name)
        asyncio.run(_make_routes(state))
        flags = ["--model-repository", str(PROJECT / "perf" / "models"), "--load", _MODEL, "--servers", str(_SERVERS)]
        flags += ["--model-parameter", f"{_MODEL}:tidegate_min_replicas={_SERVERS}"]
        with tidegate(flags, state=state) as started:
            asked = [(work, load) for work in arguments.works for load in arguments.loads or LOADS[work]]
            runs = _Runs(client, started, asked, arguments)
            ways = {Case(work, load, way): partial(runs.run, Case(work, load, way)) for work, load in asked for way in WAYS[work]}
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

    def __init__(
        self, client: ProcessPoolExecutor, started: Tidegate, asked: Sequence[tuple[str, float]], arguments: argparse.Namespace
    ) -> None:
        self._client, self._started, self._asked, self._arguments = client, started, asked, arguments
        self._numbers = {each: _LEAST_NUMBERS << place for place, each in enumerate([*asked, (HALF, _HALF_LOAD)])}
        """Numbers in the input of each work at each load: by how many there are the gateway tells kinds of requests apart."""
        self._counters = Counters(started, _MODEL)
        self._counters.wait_for_replicas(_SERVERS)
        self._samples: dict[str, tuple[float, Sample]] = {}
        """By work: load and latencies of its last run without hedging, at the least load."""

    def learn(self) -> None:
        for work, load in self._asked:
            harness.say(f"{work} at {load:.0%}: learning")
            self._ask(work, load, WAYS[work][1], requests=_requests(work, self._arguments.learn))
            self._settle(work)

    def run(self, case: Case) -> Run:
        harness.say(f"{case.work} at {case.load:.0%}, {case.way}")
        requests = _requests(case.work, self._arguments.requests)
        before = self._counters.read()
        answered = self._ask(case.work, case.load, case.way, requests=requests)
        self._settle(case.work)
        counted = _difference(self._counters.read(), before, requests)
        latencies_ms = np.array(answered.latencies_ms)
        if case.way == OFF and case.load <= self._samples.get(case.work, (case.load,))[0]:
            self._samples[case.work] = case.load, _sample(answered, counted["compute_ms"] / 1e3)
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
        self._ask(HALF, _HALF_LOAD, _ALWAYS_TWICE, OFF, requests=requests)  # until memory is as it stays
        processes, was = len(tree(self._started.pid)), usage(self._started.pid)
        before, errors = self._counters.read(), 0
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s:
            harness.say(f"half of all requests go to two servers, {until_s - time.monotonic():.0f} s more")
            answered = self._ask(HALF, _HALF_LOAD, _ALWAYS_TWICE, OFF, requests=requests)
            sent, errors = sent + requests, errors + answered.errors
        self._settle(HALF)
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

    def _settle(self, work: str) -> None:
        """Wait until what was cancelled has ended."""
        time.sleep(_SETTLE_S + max(WORKS[work].kinds_s))

    def _ask(self, work: str, load: float, *ways: str, requests: int) -> Answered:
        frames = [WORKS[work].frame(_route(way), self._numbers[work, load]) for way in ways]
        # In each round and each way other moments, but the same ones for the same command.
        asked = self._client.submit(
            ask, self._started.addresses["grpc"], frames, requests=requests, per_s=self._per_s(WORKS[work], load), seed=requests
        )
        return asked.result()

    def _per_s(self, work: Work, load: float) -> float:
        return load * _SERVERS * _INSTANCES / work.mean_s


def _requests(work: str, count: int) -> int:
    return count // _FEWER if work == BIMODAL else count


def _sample(answered: Answered, compute_s: float) -> Sample:
    return Sample([each / 1e3 for each in answered.latencies_ms], compute_s, [each / 1e3 for each in answered.late_ms])


def _difference(after: Mapping[str, float], before: Mapping[str, float], requests: int) -> dict[str, float]:
    """What was counted meanwhile, for each request."""
    return {name: (count - before[name]) / requests for name, count in after.items()}


if __name__ == "__main__":
    main()
