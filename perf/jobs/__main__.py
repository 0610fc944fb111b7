"""What asynchronous jobs cost callers who wait, and what they get, through the gateway and the real Triton.

    python -m perf.jobs [--rounds 5] [--seconds 4] [--share 0.3] [--texts 4000] [--accept-per-s 200] [--texts-of-a-job 16]
                        [--spike-seconds 60]

Interactive callers ask for one text each in an open loop, at `--share` of what 32 callers in a closed loop get; jobs have
`--texts-of-a-job`, of which 16 are enough that handing them in is not what bounds them. What interactive requests leave idle
is the rest of that share. Once a file of `--upload-bytes` is uploaded beside them, evenly over the window. Small jobs have
one text each. `--texts` are those of one batch, a line each. The spike (`perf/jobs/spike`) comes once, after all else. The
gateway is attached to its Triton and so keeps no answers; callers, gateway and Triton share this machine's cores. Writes
perf/results/jobs.json and .md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context

import numpy as np

from perf.jobs.clients import Asked, Batches, are_open, ask, ask_at, executed, upload
from perf.jobs.report import (
    ACCEPTING,
    ALONE,
    BATCH,
    BESIDE,
    CALLERS,
    JOBS,
    SMALL_CALLERS,
    SMALL_JOBS,
    SPIKE,
    TEXTS,
    UPLOAD,
    Case,
    Report,
    Run,
)
from perf.jobs.spike import Spike
from perf.load.closed_loop import Loaded
from perf.load.inference_requests import binary_post, http_post
from perf.load.texts import PARAGRAPHS, QUERIES
from perf.load.texts import Texts as Decks
from perf.measurement import harness
from perf.measurement.interleaved import interleave, median_of
from perf.measurement.report import Result
from perf.servers.processes import PROJECT, cpu_s, machine_cpu_s, usage
from perf.servers.serving import PROTOCOLS, Tidegate, attached, serving

_ENCODER, _EMBEDDING = "text_encoder", "text_embedding"
_CALLERS = 32
_FEW_CALLERS = 8
_DISTINCT = 512
_AHEAD = 1.5
"""Jobs that are handed in for a window, times those that it can need."""
_SETTLED_S = 1.0
_ENDED_TIMEOUT_S = 120.0
_POLL_S = 0.05
_STILL_S = 0.2
"""The gateway is asked for open jobs only when Triton computes nothing for so long: asking costs what is measured."""


def main() -> None:
    parser = harness.parser(__doc__, rounds=5, seconds=4.0)
    parser.add_argument("--share", type=float, default=0.3, help="of the server's capacity, that interactive callers take")
    parser.add_argument("--texts", type=int, default=4000, help="of one batch")
    parser.add_argument("--accept-per-s", type=float, default=200.0, help="jobs that are handed in a second")
    parser.add_argument("--texts-of-a-job", type=int, default=16, help="of those beside interactive requests")
    parser.add_argument("--upload-bytes", type=int, default=200_000_000, help="of the file that is uploaded beside them")
    parser.add_argument("--spike-seconds", type=float, default=60.0, help="for which ten times the jobs come that can be computed; 0: none")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    repositories = [PROJECT / name for name in ("model_repository", "ensembles")]
    with serving(repositories, (_EMBEDDING,)) as addresses, ProcessPoolExecutor(2, mp_context=get_context("spawn")) as callers:
        triton = {protocol: addresses["direct", protocol] for protocol in PROTOCOLS}
        with attached(triton) as gateway:
            bench = _Bench(arguments, gateway, triton["http"], callers)
            bench.learn_capacity()
            runs = _interleaved(bench, arguments.rounds)
        if arguments.spike_seconds:
            # At least one in its window: none may have ended in a trial's, beside all that a busy machine does first.
            jobs_per_s = max(median_of(runs[Case(JOBS)]).per_s, 1 / arguments.seconds)
            runs[Case(SPIKE)] = [bench.spike(jobs_per_s, arguments.spike_seconds).run(triton, callers)]
        return Result(runs, bench.sources, {"interactive_share": arguments.share})


def _interleaved(bench: _Bench, rounds: int) -> dict[Case, list[Run]]:
    ways = {
        Case(ALONE): bench.interactive_alone,
        Case(BESIDE): bench.interactive_beside_jobs,
        Case(UPLOAD): bench.interactive_beside_an_upload,
        Case(JOBS): bench.jobs_alone,
        Case(CALLERS): partial(bench.synchronous, bench.large),
        Case(SMALL_JOBS): bench.small_jobs,
        Case(SMALL_CALLERS): bench.small_requests,
        Case(ACCEPTING): bench.accepting,
        Case(BATCH): bench.batch,
        Case(TEXTS): bench.texts,
    }
    return interleave(ways, rounds)


class _Cpus:
    """Meter of the CPU time of this machine, from now on."""

    def __init__(self) -> None:
        self._busy_s, self._idle_s = machine_cpu_s()
        self._since_s = time.monotonic()

    def used_by(self, run: Run) -> Run:
        busy_s, idle_s = machine_cpu_s()
        seconds = time.monotonic() - self._since_s
        return replace(run, busy_cpus=(busy_s - self._busy_s) / seconds, idle_cpus=(idle_s - self._idle_s) / seconds)


class _Bench:
    """One gateway before one Triton, and what is asked of it."""

    def __init__(self, arguments: argparse.Namespace, gateway: Tidegate, triton: str, callers: ProcessPoolExecutor) -> None:
        self._arguments, self._gateway, self._triton, self._callers = arguments, gateway, triton, callers
        self._address = gateway.addresses["http"]
        decks = Decks(QUERIES, PARAGRAPHS)
        self.sources = decks.describe()
        self._deck: Iterator[str] = (text.text for text in decks.deck("equal", seed=1))
        self.small = [_request(_ENCODER, [next(self._deck)]) for _ in range(_DISTINCT)]
        self.large = [_request(_ENCODER, list(itertools.islice(self._deck, arguments.texts_of_a_job))) for _ in range(_DISTINCT // 4)]
        self._large_per_s = self._small_per_s = 0.0

    def learn_capacity(self) -> None:
        """Ask first, so that everything is warm, also the process that computes jobs, which starts with the first one; and
        learn what 32 callers get."""
        jobs = list(map(_as_job, self.large[:_FEW_CALLERS]))
        self._callers.submit(ask, self._address, jobs, _FEW_CALLERS, _ENDED_TIMEOUT_S).result()
        self._await_rest()
        seconds = min(_SETTLED_S, self._arguments.seconds)
        for _ in range(2):
            self._large_per_s = self._closed(self.large, _CALLERS, seconds).result().requests / seconds
            self._small_per_s = self._closed(self.small, _CALLERS, seconds).result().requests / seconds

    def interactive_alone(self) -> Run:
        self._await_rest()
        cpus = _Cpus()
        return cpus.used_by(_run(self._interactive().result()))

    def interactive_beside_jobs(self) -> Run:
        self._hand_in()
        asking = self._interactive()
        before, began_s = self._executed(), time.monotonic()
        asked = asking.result()
        seconds = time.monotonic() - began_s
        jobs = self._executed() - before - len(asked.latencies_ms)
        return _run(asked, jobs_per_s=jobs / seconds)

    def interactive_beside_an_upload(self) -> Run:
        """Measure while a file is uploaded, as evenly as the window is long; with the memory that the gateway has more at most."""
        self._await_rest()
        before = most = usage(self._gateway.pid).rss_bytes
        asking = self._interactive()
        uploading = self._callers.submit(upload, self._address, self._arguments.upload_bytes, self._arguments.seconds)
        while not (asking.done() and uploading.done()):
            most = max(most, usage(self._gateway.pid).rss_bytes)
            time.sleep(0.01)
        uploading.result()
        return replace(_run(asking.result()), memory_mib=(most - before) / 2**20)

    def jobs_alone(self) -> Run:
        self._hand_in()
        before, cpus, began_s = self._executed(), _Cpus(), time.monotonic()
        time.sleep(self._arguments.seconds)
        return cpus.used_by(Run((self._executed() - before) / (time.monotonic() - began_s)))

    def synchronous(self, requests: Sequence[bytes]) -> Run:
        self._await_rest()
        return _closed(self._closed(requests, _CALLERS, self._arguments.seconds).result())

    def small_requests(self) -> Run:
        self._await_rest()
        cpu_before_s = cpu_s(self._gateway.pid)
        loaded = self._closed(self.small, _FEW_CALLERS, self._arguments.seconds).result()
        return _closed(loaded, cpu_us=(cpu_s(self._gateway.pid) - cpu_before_s) / loaded.requests * 1e6)

    def small_jobs(self) -> Run:
        """Measure from the first job that is handed in until the last has ended."""
        self._await_rest()
        cpu_before_s, began_s = cpu_s(self._gateway.pid), time.monotonic()
        loaded = self._closed(list(map(_as_job, self.small)), _FEW_CALLERS, self._arguments.seconds).result()
        ended_s = self._await_rest()
        cpu_us = (cpu_s(self._gateway.pid) - cpu_before_s) / loaded.requests * 1e6
        return Run(loaded.requests / (ended_s - began_s), cpu_us=cpu_us, errors=loaded.errors)

    def accepting(self) -> Run:
        """Measure an open loop of submissions, while the jobs that were handed in are computed."""
        self._await_rest()
        jobs = list(map(_as_job, self.small))
        asked = self._callers.submit(ask_at, self._address, jobs, self._arguments.accept_per_s, self._arguments.seconds, wanted=202)
        return _run(asked.result())

    def batch(self) -> Run:
        self._await_rest()
        texts = list(itertools.islice(self._deck, self._arguments.texts))
        began_s = time.monotonic()
        answered = Batches(self._address).run(_EMBEDDING, texts)
        return Run(answered / (time.monotonic() - began_s), errors=len(texts) - answered)

    def texts(self) -> Run:
        self._await_rest()
        bodies = (
            json.dumps({"model": _EMBEDDING, "input": text, "encoding_format": "base64"}).encode()
            for text in itertools.islice(self._deck, self._arguments.texts)
        )
        requests = [http_post("/v1/embeddings", body) for body in bodies]
        return _closed(self._callers.submit(ask, self._address, requests, _CALLERS, _ENDED_TIMEOUT_S).result())

    def spike(self, jobs_per_s: float, seconds: float) -> Spike:
        """Make a spike of large jobs, beside as many interactive requests as in all other cases."""
        return Spike(list(map(_as_job, self.large)), jobs_per_s, self.small, self._interactive_per_s, seconds)

    @property
    def _interactive_per_s(self) -> float:
        return float(self._arguments.share * self._small_per_s)

    def _interactive(self) -> Future[Asked]:
        return self._callers.submit(ask_at, self._address, self.small, self._interactive_per_s, self._arguments.seconds)

    def _closed(self, requests: Sequence[bytes], callers: int, seconds: float) -> Future[Loaded]:
        count = int(seconds * max(self._small_per_s, 2000.0)) + callers
        return self._callers.submit(ask, self._address, list(itertools.islice(itertools.cycle(requests), count)), callers, seconds)

    def _hand_in(self) -> None:
        """Hand in as many large jobs as a window can need, and let the gate find what is idle."""
        self._await_rest()
        settles_s = min(_SETTLED_S, self._arguments.seconds)
        count = int(_AHEAD * self._large_per_s * (self._arguments.seconds + settles_s)) + _CALLERS
        jobs = list(map(_as_job, itertools.islice(itertools.cycle(self.large), count)))
        handed_in = self._callers.submit(ask, self._address, jobs, _FEW_CALLERS, _ENDED_TIMEOUT_S).result()
        if handed_in.errors:
            raise RuntimeError(f"{handed_in.errors} of {count} jobs were refused")
        time.sleep(settles_s)

    def _await_rest(self) -> float:
        """Wait until no job is open; return when Triton was last seen to compute. Raises RuntimeError: some are for too long."""
        deadline_s = time.monotonic() + _ENDED_TIMEOUT_S
        count, changed_s = -1, 0.0
        while True:
            computed, now_s = self._executed(), time.monotonic()
            if computed != count:
                count, changed_s = computed, now_s
            elif now_s - changed_s > _STILL_S and not are_open(self._address):
                return changed_s
            if now_s > deadline_s:
                raise RuntimeError("the jobs that were handed in do not come to an end")
            time.sleep(_POLL_S)

    def _executed(self) -> int:
        return executed(self._triton, _ENCODER)


def _request(model: str, texts: Sequence[str]) -> bytes:
    elements = b"".join(len(data).to_bytes(4, "little") + data for data in (text.encode() for text in texts))
    tensor = f'{{"name":"TEXT","datatype":"BYTES","shape":[{len(texts)},1],"parameters":{{"binary_data_size":{len(elements)}}}}}'
    return binary_post(model, f'{{"inputs":[{tensor}],"parameters":{{"binary_data_output":true}}}}', elements)


def _as_job(request: bytes) -> bytes:
    return request.replace(b"/infer HTTP/1.1", b"/jobs HTTP/1.1", 1)


def _run(asked: Asked, *, jobs_per_s: float = float("nan")) -> Run:
    p50_ms, p99_ms = (float(np.percentile(asked.latencies_ms, percent)) for percent in (50, 99))
    return Run(len(asked.latencies_ms) / asked.seconds, p50_ms, p99_ms, jobs_per_s, errors=asked.errors)


def _closed(loaded: Loaded, *, cpu_us: float = float("nan")) -> Run:
    return Run(loaded.requests_per_s, loaded.percentile_ms(50), loaded.percentile_ms(99), cpu_us=cpu_us, errors=loaded.errors)


if __name__ == "__main__":
    main()
