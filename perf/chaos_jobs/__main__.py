"""Whether each accepted job is answered exactly once, whatever dies: real RabbitMQ, Redis, Tritons, gateways and workers.

    python -m perf.chaos_jobs [NAME ...] [--jobs 20000] [--seed 1] [--fault-s 240]         # or `make chaos-jobs`

Jobs of three tenants, with tensors in JSON and binary, of three models and an ensemble, right and wrong, some cancelled, and OpenAI's
batches, are handed in while faults are done to two gateways with a Triton each, two `tidegate jobs run`, RabbitMQ and Redis
(`perf.chaos_jobs.drills`). Faults begin at random, by the seed, and end after `--fault-s` at the latest. Then each job that was accepted
is held against the synchronous answer, usage against the jobs, and the stores to having nothing left once what is kept is over.
Everything stays on this machine's loopback and ends with the scenario. Writes perf/results/chaos-jobs.json and .md.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from perf.chaos_jobs import answers, audit
from perf.chaos_jobs.callers import Callers, until
from perf.chaos_jobs.drills import DRILLS, Drill, Scene
from perf.chaos_jobs.findings import Findings
from perf.chaos_jobs.report import Case, Report
from perf.chaos_jobs.run import Run
from perf.chaos_jobs.site import Site, site
from perf.chaos_jobs.work import jobs
from perf.measurement import harness
from perf.measurement.report import Result

_JOBS_PER_BATCH = 250
_ENDED_S = 300.0
_SETTLED_S = 60.0
_OPEN_BATCHES = frozenset(("validating", "in_progress", "finalizing", "cancelling"))


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--jobs", type=int, default=20_000, help="of the first drill; the others have a part of them")
    parser.add_argument("--seed", type=int, default=1, help="of the jobs, and of when faults begin")
    parser.add_argument("--fault-s", type=float, default=240.0, help="seconds for which faults are done at most")
    harness.carry_out_drills(Report, parser, DRILLS, _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    runs: dict[Case, list[Run]] = {}
    more: dict[str, dict[str, object]] = {"faults": {}, "said": {}}
    for drill in [DRILLS[name] for name in arguments.drills or DRILLS]:
        harness.say(f"{drill.name}, seed {arguments.seed}")
        with (
            tempfile.TemporaryDirectory(prefix="tidegate-chaos-jobs-", ignore_cleanup_errors=True) as folder,
            site(Path(folder), appendfsync=drill.appendfsync) as here,
        ):
            run, faults, said = asyncio.run(_carry_out(drill, here, arguments))
        runs[Case(drill.name)] = [run]
        more["faults"][drill.name], more["said"][drill.name] = faults, said
        print(f"{drill.name}: {run}\n    {faults}\n    " + "\n    ".join(said), file=sys.stderr, flush=True)
    return Result(runs, more=more)


async def _carry_out(drill: Drill, here: Site, arguments: argparse.Namespace) -> tuple[Run, dict[str, int], list[str]]:
    count = max(20, int(arguments.jobs * drill.part))
    callers, findings = Callers(here.addresses, dict(here.keys), arguments.seed), Findings()
    batches = max(1, count // _JOBS_PER_BATCH)
    scene = Scene(here, callers, jobs(count, arguments.seed), count, batches, arguments.seed, arguments.fault_s)
    try:
        began_s = time.monotonic()
        await drill.act(scene)
        await _until_over(here, callers, findings)
        seconds = time.monotonic() - began_s
        known = await audit.records(here)
        await audit.judge_usage(here, known, findings)
        await answers.judge_jobs(callers, known, findings, saved_s=scene.saved_s)
        await answers.judge_batches(callers, findings)
    finally:
        callers.close()
    await asyncio.to_thread(here.stop_computing)
    await audit.judge_broker(here, findings)
    await audit.judge_remains(here, findings)
    run = Run(
        accepted=len(callers.accepted),
        lines=sum(len(batch.lines) for batch in callers.batches),
        faults=sum(scene.faults.values()),
        longest_attempts=max((job.attempts for job in known), default=0),
        seconds=seconds,
        **findings.counts,
    )
    return run, scene.faults, findings.said


async def _until_over(here: Site, callers: Callers, findings: Findings) -> None:
    """Wait until every job and batch has ended, all is charged and no ticket is left, but not for ever."""

    async def have_batches_ended() -> bool:
        for batch in callers.batches:
            if not batch.view or batch.view["status"] in _OPEN_BATCHES:
                batch.view = (await callers.ask(batch.tenant, "GET", f"/v1/batches/{batch.id}")).json
                if batch.view["status"] in _OPEN_BATCHES:
                    return False
        return True

    async def is_none_open() -> bool:
        return not await audit.open_jobs(here)

    async def is_settled() -> bool:
        return await audit.is_charged(here) and not await audit.tickets(here, audit.QUEUE)

    try:
        await until(is_none_open, _ENDED_S, "every job has ended")
        await until(have_batches_ended, _ENDED_S, "every batch has ended")
        await until(is_settled, _SETTLED_S, "everything is charged, and no ticket is left")
    except TimeoutError as exc:  # what has not ended is told job by job
        findings.said.append(str(exc))


if __name__ == "__main__":
    main()
