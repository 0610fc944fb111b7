"""What callers see in a long time of steady traffic before real Tritons, and in a spike of ten times as much in its middle.

    python -m perf.soak [--minutes 20] [--spike-s 30] [--times 10] [--share 0.4] [--peak-s 10] [--callers 32] [--cold-every-s 5]

One gateway as shipped, with authentication, two tenants and two Tritons. First callers who ask in turns find out how much can be
served; then requests come at `--share` of that, whatever becomes of those before (Poisson): half over HTTP, half over gRPC, a tenth
streamed, half of the rest such as came before, and all with a deadline of 1 s. In the spike h2load sends the rest of `--times` as
many: equal requests to a model whose answers are not kept, half over either protocol. A few callers leave early, and every `--cold-every-s`
somebody asks for one of twelve models of which six have room. Latencies count from when a request was due. Clients, gateway and
Tritons share this machine's cores. Writes perf/results/soak.json and .md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import pairwise
from math import nan
from multiprocessing import get_context
from pathlib import Path

from control_plane.objects.domain.tenant import Tenant
from perf.load.keys import make_keys
from perf.measurement import harness
from perf.measurement.report import Result
from perf.servers.serving import Tidegate, tidegate
from perf.soak import held, models
from perf.soak.callers import Gateway, Phase, peak_per_s, soak
from perf.soak.flood import Flooded
from perf.soak.held import Sample
from perf.soak.outcomes import Outcome, Requests, normal_after_s, windows
from perf.soak.report import AFTER, BEFORE, COLD, FLOODS, SPIKE, Case, Report, Run

_SERVERS = 2
_MINUTE_S = 60.0
_RECOVERS_S = 10.0
"""After the spike; the first minute after it begins then."""
_FIRST_MINUTES = 3
"""After these, memory is what the rest is held against."""
_SAMPLES_OF_A_MINUTE = 20


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="of steady traffic, half before and half after the spike")
    parser.add_argument("--spike-s", type=float, default=30.0)
    parser.add_argument("--times", type=float, default=10.0, help="as many requests in the spike")
    parser.add_argument("--share", type=float, default=0.4, help="of what can be served, at which steady traffic comes")
    parser.add_argument("--peak-s", type=float, default=10.0, help="for which it is measured what can be served, after as long a warm-up")
    parser.add_argument("--callers", type=int, default=32, help="who find that out")
    parser.add_argument("--cold-every-s", type=float, default=5.0, help="somebody asks for a cold model")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as name, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as client:
        folder = Path(name)
        (folder / "state").mkdir(mode=0o700)
        keys = make_keys(folder / "state", Tenant("one"), Tenant("other"))
        with tidegate([*_flags(models.write(folder / "models"))], state=folder / "state") as started:
            gateway = Gateway(started.addresses, list(keys.values()))
            return _soaked(client, started, gateway, arguments)


def _flags(repository: Path) -> Sequence[str]:
    flags = ["--authentication", "--model-repository", str(repository), "--servers", str(_SERVERS)]
    flags += ["--memory-budget", f"{models.ROOM_MIB}MiB"]
    for model in models.HOT:
        flags += ["--load", model, "--model-parameter", f"{model}:tidegate_min_replicas={_SERVERS}"]
    return flags


def _soaked(client: ProcessPoolExecutor, started: Tidegate, gateway: Gateway, arguments: argparse.Namespace) -> Result:
    harness.say("what can be served")
    for _ in range(2):  # the first time, all is warmed up and what the gateway learns is learnt
        peak = client.submit(peak_per_s, gateway, arguments.callers, arguments.peak_s).result()
    phases = _phases(peak, arguments)
    harness.say(f"{sum(each.seconds for each in phases) / 60:.1f} minutes at {phases[0].per_s:.0f} requests a second")
    with held.sampled(started.pid, _window_s(phases[0].seconds) / _SAMPLES_OF_A_MINUTE) as samples:
        requests, floods = client.submit(soak, gateway, phases, arguments.cold_every_s).result()
    return _result(requests, floods, samples, phases, peak)


def _phases(peak: float, arguments: argparse.Namespace) -> list[Phase]:
    half_s, per_s = 30.0 * arguments.minutes, arguments.share * peak
    spike = Phase(SPIKE, arguments.spike_s, per_s, (arguments.times - 1) * per_s)
    return [Phase(BEFORE, half_s, per_s), spike, Phase(AFTER, half_s, per_s)]


def _window_s(phase_s: float) -> float:
    """A minute, or less where a phase has no three of them."""
    return min(_MINUTE_S, phase_s / _FIRST_MINUTES)


def _result(requests: Requests, floods: Sequence[Flooded], samples: Sequence[Sample], phases: Sequence[Phase], peak: float) -> Result:
    hot = requests.hot()
    edges_s = [0.0]
    for phase in phases:
        edges_s.append(edges_s[-1] + phase.seconds)
    _, begins_s, ends_s, last_s = edges_s
    parts = {phase.name: hot.due(*each) for phase, each in zip(phases, pairwise(edges_s), strict=True)}
    runs = {Case(phase.name): [_run(parts[phase.name], phase.seconds)] for phase in phases}
    runs |= {Case(FLOODS[each.way]): [_flood_run(each, phases[1].seconds)] for each in floods}
    runs[Case(COLD)] = [_run(requests.cold(), last_s)]
    window_s = _window_s(phases[0].seconds)
    before = windows(0.0, begins_s, window_s)
    after = windows(ends_s + min(_RECOVERS_S, window_s / 2), last_s, window_s)
    minutes_ms = [hot.due(*each).percentile_ms(99) for each in (*before, *after)]
    first, last = before[min(_FIRST_MINUTES, len(before)) - 1], after[-1]
    more = {
        "peak_per_s": peak,
        "minute_s": window_s,
        "minutes_p99_ms": minutes_ms,
        "spike_times": (phases[1].per_s + phases[1].flood_per_s) / phases[0].per_s,
        "normal_after_s": normal_after_s(hot, spike_ends_s=ends_s, soak_ends_s=last_s, before_ms=parts[BEFORE].percentile_ms(99)),
        "held": {kind: [asdict(held.usual(samples, kind, *each)) for each in (first, last)] for kind in (held.GATEWAY, held.TRITON)},
        "said": dict(sorted(requests.said.items(), key=lambda each: -each[1])),
    }
    return Result(runs, more=more)


def _run(requests: Requests, seconds: float) -> Run:
    return Run(
        requests=len(requests),
        answers=requests.count(Outcome.ANSWERED),
        refused=requests.count(Outcome.REFUSED),
        left=requests.count(Outcome.LEFT),
        expired=requests.count(Outcome.EXPIRED),
        unsent=requests.count(Outcome.UNSENT),
        errors=requests.count(Outcome.ERROR),
        in_time_per_s=requests.in_time() / seconds,
        p50_ms=requests.percentile_ms(50),
        p99_ms=requests.percentile_ms(99),
        refused_p99_ms=requests.refusal_ms(99),
        client_late_p99_ms=requests.client_late_ms(99),
    )


def _flood_run(flooded: Flooded, seconds: float) -> Run:
    return Run(
        requests=flooded.requests,
        answers=flooded.answers,
        refused=flooded.refused,
        left=0,
        expired=flooded.expired,
        unsent=flooded.requests - flooded.sent,
        errors=flooded.errors,
        in_time_per_s=flooded.in_time / seconds,
        p50_ms=flooded.p50_ms,
        p99_ms=flooded.p99_ms,
        refused_p99_ms=nan,
        client_late_p99_ms=nan,
    )


if __name__ == "__main__":
    main()
