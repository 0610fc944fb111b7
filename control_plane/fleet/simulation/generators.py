"""Synthetic traces, for use without a recorded one.

All randomness is drawn from the `Random` that is handed in: the same seed gives the same trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random

from control_plane.fleet.simulation.workload import Request

DAYS_IN_TRACE = 4
"""Days of a `periodic` trace."""


def model_names(count: int) -> list[str]:
    """Names of equal width, so that they sort by number."""
    width = len(str(max(0, count - 1)))
    return [f"model-{number:0{width}d}" for number in range(count)]


def zipf(random: Random, names: Sequence[str], requests: int, exponent: float) -> list[str]:
    """Draw models independently, each with a probability of 1 / rank ** exponent; a model's rank is
    independent of its name."""
    by_rank = random.sample(names, len(names))
    return random.choices(by_rank, cum_weights=_weights(len(names), exponent), k=requests)


def drifting(random: Random, names: Sequence[str], requests: int, exponent: float) -> list[str]:
    """Draw by Zipf while popularity drifts: the most popular model falls back to the last rank, often enough
    for each to have been first."""
    by_rank = random.sample(names, len(names))
    ranks = random.choices(range(len(names)), cum_weights=_weights(len(names), exponent), k=requests)
    return [by_rank[(rank + at * len(names) // requests) % len(names)] for at, rank in enumerate(ranks)]


def periodic(random: Random, names: Sequence[str], requests: int, exponent: float) -> list[str]:
    """Draw by Zipf from one half of the models by day and from the other by night, for `DAYS_IN_TRACE`
    days."""
    halves = names[: len(names) // 2] or names, names[len(names) // 2 :]
    drawn = [zipf(random, half, requests, exponent) for half in halves]
    return [drawn[at * 2 * DAYS_IN_TRACE // requests % 2][at] for at in range(requests)]


def poisson(random: Random, models: Iterable[str], rate: float, service_s: float) -> list[Request]:
    """Return requests for these models in this order, as a Poisson process with `rate` requests per second on
    average."""
    now_s, requests = 0.0, []
    for model in models:
        now_s += random.expovariate(rate)
        requests.append(Request(now_s, model, service_s))
    return requests


def faster(requests: Sequence[Request], from_s: float, for_s: float, factor: float) -> list[Request]:
    """Speed a trace up by `factor` for `for_s` seconds of the result, from `from_s` on; what follows moves
    forward accordingly."""
    until_s = from_s + for_s * factor

    def moved(at_s: float) -> float:
        return at_s - max(0.0, min(at_s, until_s) - from_s) * (1 - 1 / factor)

    return [request._replace(at_s=moved(request.at_s)) for request in requests]


def flash_crowd(random: Random, requests: Sequence[Request], crowd: Request, for_s: float, rate: float) -> list[Request]:
    """Add `rate` requests per second like `crowd`, from its time on and for `for_s` seconds."""
    added, now_s = [], crowd.at_s + random.expovariate(rate)
    while now_s < crowd.at_s + for_s:
        added.append(crowd._replace(at_s=now_s))
        now_s += random.expovariate(rate)
    return sorted([*requests, *added])


def _weights(ranks: int, exponent: float) -> list[float]:
    """Cumulative weights of the ranks."""
    return list(accumulate(1 / rank**exponent for rank in range(1, ranks + 1)))
