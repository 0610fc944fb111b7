"""How often a canary is rolled back that is no worse, and how many requests it takes to find one that is. Nothing is served.

    python -m perf.rollout_gates [--alike 10000] [--worse 200] [--ticks 60]

The gates that rollouts have are fed with simulated requests and looked at after each tick, beside a rule that compares
rates with a threshold, and Kayenta's test, written anew from what its documentation and source say of it.
Three rates are judged together where versions are alike: faults (1 %), slower than the median (50 %), and slower than the 99th
percentile (1 %).
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from statistics import median

import numpy as np

from perf.measurement import harness
from perf.measurement.report import Result
from perf.rollout_gates.judges import JUDGES, make_judge
from perf.rollout_gates.report import Case, Report, Run
from perf.rollout_gates.worlds import World, ticks

ALPHA = 0.01
_RATES = (0.01, 0.5, 0.01)
ALIKE = (
    World("steady", "the same all the time", _RATES),
    World(
        "day and night, five steps",
        "traffic and rates rise and fall by 60 %, and the weight by steps",
        (0.01, 0.4, 0.01),
        weights=(0.01, 0.05, 0.1, 0.25, 0.5),
        swing=0.6,
    ),
    World(
        "callers who stick, one always fails",
        "300 callers, of whom the largest sends a sixth of all requests",
        _RATES,
        weights=(0.1, 0.5),
        units=300,
        always_bad=1,
    ),
)
WORSE = (
    World("fails always", "", (0.001,), (1.0,), per_tick=100),
    World("0.1 % faults become 0.2 %", "", (0.001,), (0.002,), per_tick=20_000),
    World("1 % faults become 2 %", "", (0.01,), (0.02,), per_tick=2_000),
    World("10 % faults become 20 %", "", (0.1,), (0.2,), per_tick=500),
    # Lognormal times of a deviation of 0.3; by 1.2 times slower is 1.09 times beyond the tolerance of 1.1.
    World("1.2 times as slow: median", "", (0.5,), (0.614,), per_tick=500),
    World("1.2 times as slow: 99th percentile", "", (0.01,), (0.0210,), per_tick=2_000),
    World("disagrees on 1 %", "", (0.0,), (0.01,), per_tick=500),
)
_WORSE_TICKS = 200


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--alike", type=int, default=10_000, help="simulated rollouts of versions that are alike, for each world")
    parser.add_argument("--worse", type=int, default=200, help="simulated rollouts of versions that are worse, for each world")
    parser.add_argument("--ticks", type=int, default=60, help="ticks of a rollout of versions that are alike")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    cases = [(world, judge, True) for world in ALIKE for judge in JUDGES]
    cases += [(world, judge, False) for world in WORSE for judge in JUDGES]
    results = {}
    processes = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(processes) as pool:
        for world, judge, is_alike in cases:
            harness.say(f"{world.name}, {judge}")
            count, length = (arguments.alike, arguments.ticks) if is_alike else (arguments.worse, _WORSE_TICKS)
            seeds = [range(first, count, processes) for first in range(processes)]
            parts = pool.map(simulated, [world] * processes, [judge] * processes, seeds, [length] * processes)
            found = [each for part in parts for each in part]
            at = [requests for has_failed, requests in found]
            results[Case(world.name, judge, is_alike)] = [
                Run(len(found), sum(has_failed for has_failed, _ in found), 0.0 if is_alike else float(median(at)))
            ]
    return Result(results, [f"**{world.name}**: {world.told}" for world in ALIKE])


def simulated(world: World, judge: str, seeds: range, length: int) -> list[tuple[bool, int]]:
    """Tell of each simulated rollout whether the canary was found to be worse, and after how many of its requests."""
    return [_simulate(world, judge, seed, length) for seed in seeds]


def _simulate(world: World, name: str, seed: int, length: int) -> tuple[bool, int]:
    judge = make_judge(name, len(world.rates), alpha=ALPHA)
    for tick in ticks(world, length, np.random.default_rng(seed)):
        if judge.looks(tick):
            return True, judge.canary
    return False, judge.canary


if __name__ == "__main__":
    main()
