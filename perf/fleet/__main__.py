"""More models than memory, for real: sixteen text encoders on three Tritons with room for four each, under a trace made short.

    python -m perf.fleet [--trace PATH] [--requests 400] [--seconds 40] [--rounds 2] [--ways tidegate round-robin sticky-hash]

`tidegate serve --servers 3 --memory-budget ...` against a proxy as people write one (`perf.fleet.sites`), which routes in turns or by the
model's name and keeps in each Triton what was used last. Each way begins with nothing loaded, and has the same requests at the same
times, models of the same sizes, and Tritons of its own; ways take turns. First each model is measured alone: what it declares is what it
took. Then what `perf.simulate` says of the same requests, sizes and times is held against what happened.

`--trace` is GenTD26's file of requests: its most used models, in its busiest stretch of so many requests. Clients, gateway and Tritons
share this machine's cores. Writes perf/results/fleet.json, .md and .png.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, quantiles
from time import monotonic

from control_plane.fleet.simulation.router import Router
from control_plane.fleet.simulation.workload import MIB, Request
from perf.fleet import alone, models, plot, trace
from perf.fleet.alone import AllAlone
from perf.fleet.clients import PATIENCE_S, Answers, replay
from perf.fleet.prediction import Costs, predict
from perf.fleet.report import ROUND_ROBIN, STICKY_HASH, TIDEGATE, Case, Memory, Report, Run
from perf.fleet.servers import Logged, logged_in, tritons, watching_memory
from perf.fleet.sites import Proxy
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.servers import serving
from perf.servers.processes import PROJECT
from perf.simulate.baselines import ConsistentHash, RoundRobin

_RULES: dict[str, type[Router]] = {ROUND_ROBIN: RoundRobin, STICKY_HASH: ConsistentHash}
_MARGIN = 1.03
"""On what was measured once: a model takes a little more or less each time."""
_SETTLE_S = 2.0
"""Before the first request: what an empty Triton holds is seen."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Bench that all ways of serving the trace have in common: the models, their sizes, and the trace."""

    models: Path
    alone: AllAlone
    resident_bytes: dict[str, int]
    """As the models declare them."""
    budget_bytes: int
    servers: int
    requests: Sequence[Request]


@dataclass(frozen=True, slots=True)
class Happened:
    """Outcome of one run of the trace."""

    answers: Answers
    seconds: float
    memory: Memory
    logged: Logged
    unload_s: list[float]
    """Empty where nobody tells."""


def main() -> None:
    parser = harness.parser(__doc__, rounds=2)
    parser.add_argument("--trace", type=Path, help="GenTD26's requests; without it they are drawn")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=40.0, help="in which they come")
    parser.add_argument("--models", type=int, default=len(models.ENCODERS), help="of the sixteen, the smallest first")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--room", type=float, default=4.0, help="in each server, for so many models of the mean size")
    parser.add_argument("--ways", nargs="+", choices=(TIDEGATE, *_RULES), default=[TIDEGATE, *_RULES])
    harness.carry_out(Report, parser.parse_args(), _measure, plot.draw)


def _measure(arguments: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as folder:
        bench = _bench(arguments, Path(folder))
        ways = {Case(way): partial(_happen, way, bench) for way in arguments.ways}
        happened = interleave(ways, arguments.rounds)
    served = service_s_of(bench, [run for case, runs in happened.items() if case.way != TIDEGATE for run in runs])
    runs = {case: [judge(case.way, bench, run, served) for run in runs] for case, runs in happened.items()}
    memory = {case.way: runs[-1].memory for case, runs in happened.items()}
    more = {
        "budget_bytes": bench.budget_bytes,
        "alone": {name: asdict(each) for name, each in bench.alone.models.items()},
        "memory": {way: {"times_s": each.times_s, "held_bytes": list(each.held_bytes.values())} for way, each in memory.items()},
    }
    return Result(runs, [_source(arguments.trace)], more)


def _source(trace: Path | None) -> str:
    theirs = "the busiest stretch of GenTD26's for its most used models (Alibaba cluster-trace-v2026-GenAI, research and study use)"
    return f"Requests: {theirs if trace else 'drawn by this project'}."


def _bench(arguments: argparse.Namespace, folder: Path) -> Bench:
    made = PROJECT / ".cache" / "fleet_models"
    names = list(models.build(made, models.ENCODERS[: arguments.models]))
    harness.say("each model alone")
    measured = alone.measure(made, names)
    resident = {name: round(model.resident_bytes * _MARGIN) for name, model in measured.models.items()}
    models.declare(made, folder, resident)
    requests = trace.requests(arguments.trace, names, count=arguments.requests, seconds=arguments.seconds)
    budget_bytes = round(arguments.room * fmean(resident.values()) / MIB) * MIB
    return Bench(folder, measured, resident, budget_bytes, arguments.servers, requests)


def _happen(way: str, bench: Bench) -> Happened:
    harness.say(way)
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as state:
        happened = asyncio.run((_through_tidegate if way == TIDEGATE else _through_proxy)(way, bench, Path(state)))
    for failure in happened.answers.failures[:5]:
        print(f"{way}: {failure}", file=sys.stderr)
    return happened


def service_s_of(bench: Bench, proxied: Sequence[Happened]) -> dict[str, float]:
    """Return of each model the lower quartile of what its Tritons took: of who has nobody before him, on a machine as busy as it was."""
    taken = {name: [each for run in proxied for each in run.answers.asked_s.get(name, ())] for name in bench.alone.models}
    return {name: quantiles(each, n=4)[0] if len(each) > 1 else bench.alone.models[name].service_s for name, each in taken.items()}


def judge(way: str, bench: Bench, happened: Happened, service_s: Mapping[str, float]) -> Run:
    answers, alone = happened.answers, bench.alone
    loads, unloads = len(happened.logged.load_s), happened.logged.unloads
    load_s = fmean(happened.logged.load_s)
    unload_s = fmean(happened.unload_s or [model.unload_s for model in alone.models.values()])
    costs = Costs(bench.resident_bytes, alone.models, service_s, load_s=load_s, unload_s=unload_s)
    predicted = predict(way, bench.requests, costs, servers=bench.servers, budget_bytes=bench.budget_bytes)
    return Run(
        loads=loads,
        unloads=unloads,
        failures=len(answers.failures),
        p50_ms=answers.percentile_ms(50),
        p99_ms=answers.percentile_ms(99),
        mean_ms=fmean(answers.latencies_s) * 1000,
        seconds=happened.seconds,
        load_ms=load_s * 1000,
        unload_ms=unload_s * 1000,
        held_bytes=happened.memory.most_bytes_of_models() - alone.kept_bytes,
        predicted_loads=predicted.loads,
        predicted_refused=predicted.refused,
        predicted_p50_ms=predicted.quantile_s(0.5) * 1000,
        predicted_p99_ms=predicted.quantile_s(0.99) * 1000,
    )


async def _through_proxy(way: str, bench: Bench, state: Path) -> Happened:
    async with tritons(bench.servers, bench.models, state) as started, asyncio.TaskGroup() as tasks:
        proxy = Proxy(started, _RULES[way](), budget_bytes=bench.budget_bytes, resident_bytes=bench.resident_bytes)
        running = tasks.create_task(proxy.run(), name="proxy")
        with watching_memory(os.getpid()) as memory:
            await asyncio.sleep(_SETTLE_S)
            began_s = monotonic()
            answers = await replay(bench.requests, proxy.serving)
            seconds = monotonic() - began_s
        running.cancel()
        return Happened(answers, seconds, memory, logged_in(state), proxy.done.unload_s)


async def _through_tidegate(way: str, bench: Bench, state: Path) -> Happened:
    flags = ["--servers", str(bench.servers), "--memory-budget", str(bench.budget_bytes), "--model-repository", str(bench.models)]
    patient = {"TIDEGATE_LOAD_WAIT_S": str(PATIENCE_S)}
    with serving.tidegate(flags, state=state, variables=patient) as started:
        url = f"http://{started.addresses['http']}"

        @asynccontextmanager
        async def gateway(request: Request) -> AsyncIterator[str]:
            yield url

        with watching_memory(started.pid) as memory:
            await asyncio.sleep(_SETTLE_S)
            began_s = monotonic()
            answers = await replay(bench.requests, gateway)
            seconds = monotonic() - began_s
        return Happened(answers, seconds, memory, logged_in(state), [])


if __name__ == "__main__":
    main()
