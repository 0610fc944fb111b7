"""The fleets and what they meet. All of a case is made of its name, the seed, and the files that were given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from control_plane.fleet.simulation.generators import drifting, faster, flash_crowd, model_names, periodic, poisson, zipf
from control_plane.fleet.simulation.workload import FleetShape, Joins, Leaves, Request, Workload, server_name
from perf.simulate.traces import (
    MODEL_BYTES,
    GenTd26,
    Scale,
    alike,
    at_its_own_times,
    at_random_times,
    read_gentd26,
    read_load_times_s,
    unequal,
)

SERVICE_S, LOAD_S = 0.010, 0.050
_BUSY = 0.4
_SKEW = 1.1
_REQUESTS, _MODELS = 16_000, 80
"""As GenTD26 has."""


@dataclass(frozen=True, slots=True)
class Files:
    """Published traces and measured load times that the command line names."""

    trace: GenTd26 | None = None
    load_times_s: list[float] | None = None
    busy: float = _BUSY

    @classmethod
    def read(cls, trace: Path | None, load_times: Path | None, busy: float) -> Files:
        requests = None if trace is None else read_gentd26(trace)
        return cls(requests, None if load_times is None else read_load_times_s(load_times), busy)


@dataclass(frozen=True, slots=True)
class Setting:
    """A workload and the fleet that it meets."""

    workload: Workload
    shape: FleetShape
    most_servers: int
    """At a time."""

    @property
    def memory_bytes(self) -> int:
        return self.most_servers * self.shape.budget_bytes


def make(case: str, seed: int, files: Files) -> Setting:
    """Raises KeyError for a case that is none."""
    return CASES[case].make(Random(f"{case}/{seed}"), files)


def _plain(servers: int, slots: int) -> Callable[[Random, Files], Setting]:
    def made(random: Random, files: Files) -> Setting:
        return _setting(_usual(random, files, servers), servers, slots)

    return made


def _usual(random: Random, files: Files, servers: int) -> Workload:
    """The given trace, else one of our own that drifts."""
    scale = Scale(files.busy * servers / SERVICE_S, SERVICE_S, LOAD_S)
    trace = files.trace or GenTd26(drifting(random, model_names(_MODELS), _REQUESTS, _SKEW), [])
    return at_random_times(trace, scale, random)


def _setting(workload: Workload, servers: int, slots: int) -> Setting:
    return Setting(workload, FleetShape(servers, slots * MODEL_BYTES), servers)


def _own_times(random: Random, files: Files) -> Setting:
    """The given trace when it came, nights and all, with an eighth of the usual for mean; else times of our own with bursts."""
    if files.trace is not None:
        return _setting(at_its_own_times(files.trace, Scale(files.busy / SERVICE_S, SERVICE_S, LOAD_S)), 8, 5)
    workload = _usual(random, replace(files, busy=files.busy / 2), 8)
    requests = list(workload.requests)
    for start in range(0, int(requests[-1].at_s), 20):
        requests = faster(requests, start, 2, 9 / 2)
    return _setting(replace(workload, requests=requests), 8, 5)


def _spike(random: Random, files: Files) -> Setting:
    """Make a workload that goes from a fifth of the usual rate to ten times that, for an eighth of the requests."""
    workload = _usual(random, replace(files, busy=files.busy / 5), 8)
    length_s = workload.requests[-1].at_s
    return _setting(replace(workload, requests=faster(workload.requests, length_s / 2, length_s / 80, 10)), 8, 5)


def _flash_crowd(random: Random, files: Files) -> Setting:
    """A model that nobody used takes a quarter of the fleet for a while: more than two servers can do."""
    workload = _usual(random, files, 8)
    length_s = workload.requests[-1].at_s
    new = Request(length_s / 2, "crowd", SERVICE_S)
    requests = flash_crowd(random, workload.requests, new, length_s / 5, 2 / SERVICE_S)
    return _setting(Workload(requests, {**workload.models, **alike(["crowd"], LOAD_S)}), 8, 5)


def _come_and_go(random: Random, files: Files) -> Setting:
    """Two of eight servers go, one after the other, and come back empty; later two more come and go."""
    workload = _usual(random, files, 8)
    part_s = workload.requests[-1].at_s / 10
    leaves, joins = ((2, 3), (4, 0), (8, 8), (9, 9)), ((3, 3), (5, 0), (6, 8), (6.5, 9))
    changes: list[Joins | Leaves] = [
        *(Leaves(part * part_s, server_name(number)) for part, number in leaves),
        *(Joins(part * part_s, server_name(number)) for part, number in joins),
    ]
    return Setting(workload, FleetShape(8, 5 * MODEL_BYTES, changes=changes), 10)


def _unequal(random: Random, files: Files) -> Setting:
    """A quarter to four times the usual size; load times as measured, if given, else by size."""
    workload = _usual(random, files, 8)
    costs = unequal(list(workload.models), LOAD_S, random, files.load_times_s)
    return _setting(replace(workload, models=costs), 8, 5)


def _generated(draw: Callable[[Random, Sequence[str], int, float], list[str]]) -> Callable[[Random, Files], Setting]:
    def made(random: Random, files: Files) -> Setting:
        models = draw(random, model_names(_MODELS), _REQUESTS, _SKEW)
        requests = poisson(random, models, files.busy * 8 / SERVICE_S, SERVICE_S)
        return _setting(Workload(requests, alike(models, LOAD_S)), 8, 5)

    return made


def _large(random: Random, files: Files) -> Setting:
    """Memory for half the models; five seconds of its traffic, from nothing loaded."""
    models = zipf(random, model_names(10_000), 100_000, 0.9)
    requests = poisson(random, models, files.busy * 500 / SERVICE_S, SERVICE_S)
    return _setting(Workload(requests, alike(models, LOAD_S)), 500, 10)


@dataclass(frozen=True, slots=True)
class _Case:
    told: str
    make: Callable[[Random, Files], Setting]
    is_large: bool = False
    """Too large for policies that look at all that is loaded anywhere."""


LARGE = "10,000 models on 500"
CASES: Mapping[str, _Case] = {
    "8x5": _Case("8 servers for 5 models each, Poisson arrivals, 40 % busy", _plain(8, 5)),
    "4x5": _Case("4 servers for 5", _plain(4, 5)),
    "8x10": _Case("8 servers for 10", _plain(8, 10)),
    "own times": _Case("8x5, requests in bursts; as a given trace has them, 5 % busy on average", _own_times),
    "spike": _Case("8x5, 8 % busy and 80 % for an eightieth of the time", _spike),
    "flash crowd": _Case("8x5, and a new model takes 25 % of the fleet more, for a fifth of the time", _flash_crowd),
    "come and go": _Case("8x5, servers die, come back empty, are added and taken away", _come_and_go),
    "unequal": _Case("8x5, models of a quarter to four times the size, and load times as different", _unequal),
    "periodic": _Case("8x5, one half of the models by day, the other by night; four days", _generated(periodic)),
    "drift": _Case("8x5, another model is the most popular every 200 requests", _generated(drifting)),
    LARGE: _Case("500 servers for 10 models each, Zipf 0.9, five seconds from nothing loaded on", _large, is_large=True),
}
