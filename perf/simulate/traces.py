"""Workloads: published traces out of files, brought to the size of the fleet."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from statistics import median

from control_plane.fleet.simulation.generators import poisson
from control_plane.fleet.simulation.workload import MIB, ModelCost, Request, Workload

MODEL_BYTES = 100 * MIB


@dataclass(frozen=True, slots=True)
class Scale:
    """Rate and times that a trace is brought to."""

    rate: float
    """Requests per second on average."""
    service_s: float = 0.010
    load_s: float = 0.050
    """Seconds that a load takes; the median model's, where they differ."""


@dataclass(frozen=True, slots=True)
class GenTd26:
    """Production requests for image models (Alibaba cluster-trace-v2026-GenAI), in order."""

    models: list[str]
    times_s: list[float]
    """From the first on, to the second."""


def read_gentd26(path: Path) -> GenTd26:
    """Raises SystemExit, with what is wrong, for another file."""
    rows = _rows(path, ("gmt_create", "checkpoint_model_version_id"))
    times = [datetime.fromisoformat(row["gmt_create"]).timestamp() for row in rows]
    return GenTd26([row["checkpoint_model_version_id"] for row in rows], [time - times[0] for time in times])


def read_load_times_s(path: Path) -> list[float]:
    """Measured load times of models of the same cluster."""
    return [float(row["value"]) / 1000 for row in _rows(path, ("value",))]


def at_random_times(trace: GenTd26, scale: Scale, random: Random) -> Workload:
    """Poisson arrivals in the trace's order."""
    requests = poisson(random, trace.models, scale.rate, scale.service_s)
    return Workload(requests, alike(trace.models, scale.load_s))


def at_its_own_times(trace: GenTd26, scale: Scale) -> Workload:
    """Return the trace's requests when they came, only faster: with all the bursts and pauses."""
    faster = trace.times_s[-1] * scale.rate / len(trace.models)
    requests = [Request(time_s / faster, model, scale.service_s) for time_s, model in sorted(zip(trace.times_s, trace.models, strict=True))]
    return Workload(requests, alike(trace.models, scale.load_s))


def alike(models: list[str], load_s: float) -> dict[str, ModelCost]:
    return {model: ModelCost(MODEL_BYTES, load_s) for model in models}


def unequal(models: list[str], load_s: float, random: Random, load_times_s: list[float] | None = None) -> dict[str, ModelCost]:
    """A quarter to four times the usual size, log-uniform; load times as measured, or in proportion to sizes.

    The median load takes `load_s` either way.
    """
    names = sorted(set(models))
    factors = [4 ** random.uniform(-1, 1) for _ in names]
    times = random.choices(load_times_s, k=len(names)) if load_times_s else factors
    middle = median(load_times_s or factors)
    return {
        name: ModelCost(round(MODEL_BYTES * factor), load_s * time / middle)
        for name, factor, time in zip(names, factors, times, strict=True)
    }


def _rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        if not set(columns) <= set(rows.fieldnames or ()):
            raise SystemExit(f"{path} has no columns {', '.join(columns)}")
        return list(rows)
