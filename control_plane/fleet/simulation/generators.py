"""Requests where no trace is given. All is drawn from the `Random` that is handed in: the same seed gives the same trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random

from control_plane.fleet.simulation.workload import Request

DAYS_IN_TRACE = 4


def model_names(count: int) -> list[str]:
    """As wide as each other, so that they sort by number."""
    width = len(str(max(0, count - 1)))
    return [f"model-{number:0{width}d}" for number in range(count)]


def zipf(random: Random, names: Sequence[str], requests: int, exponent: float) -> list[str]:
    """Independent of each other, each model by 1 / rank ** exponent; popularity has nothing to do with names."""
    by_rank = random.sample(names, len(names))
    return random.choices(by_rank, cum_weights=_weights(len(names), exponent), k=requests)


def drifting(random: Random, names: Sequence[str], requests: int, exponent: float) -> list[str]:
    """Zipf whose most popular model falls back to the last rank, so often that each has been there once at the end."""
    by_rank = random.sample(names, len(names))
    ranks = random.choices(range(len(names)), cum_weights=_weights(len(names), exponent), k=requests)
    return [by_rank[(rank + at * len(names) // requests) % len(names)] for at, rank in enumerate(ranks)]


def periodic(random: Random, names: Sequence[str], requests: int, exponent: float) -> list[str]:
    """Zipf over half the models by day and over the others by night, `DAYS_IN_TRACE` times."""
    halves = names[: len(names) // 2] or names, names[len(names) // 2 :]
    drawn = [zipf(random, half, requests, exponent) for half in halves]
    return [drawn[at * 2 * DAYS_IN_TRACE // requests % 2][at] for at in range(requests)]


def poisson(random: Random, models: Iterable[str], rate: float, service_s: float) -> list[Request]:
    """Requests for these models, in this order and at random times, `rate` of them per second on average."""
    now_s, requests = 0.0, []
    for model in models:
        now_s += random.expovariate(rate)
        requests.append(Request(now_s, model, service_s))
    return requests


def faster(requests: Sequence[Request], from_s: float, for_s: float, factor: float) -> list[Request]:
    """So many times as many per second, for so long; all that follow come as much earlier."""
    until_s = from_s + for_s * factor

    def moved(at_s: float) -> float:
        return at_s - max(0.0, min(at_s, until_s) - from_s) * (1 - 1 / factor)

    return [request._replace(at_s=moved(request.at_s)) for request in requests]


def flash_crowd(random: Random, requests: Sequence[Request], crowd: Request, for_s: float, rate: float) -> list[Request]:
    """Beside the others so many requests per second like `crowd`, from then on and for so long."""
    added, now_s = [], crowd.at_s + random.expovariate(rate)
    while now_s < crowd.at_s + for_s:
        added.append(crowd._replace(at_s=now_s))
        now_s += random.expovariate(rate)
    return sorted([*requests, *added])


def _weights(ranks: int, exponent: float) -> list[float]:
    """Summed up."""
    return list(accumulate(1 / rank**exponent for rank in range(1, ranks + 1)))
