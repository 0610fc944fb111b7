"""The reference's page of metrics: those of the gateway, of a fleet and of the shipped models, as the metrics page shows them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from control_plane.core.algorithms.steps import finish
from control_plane.core.endpoints import TcpAddress
from control_plane.core.infer_call import CacheStatus, Frontend, Outcome
from control_plane.events.domain.stream import Stream
from control_plane.fleet.adapters.metrics import FleetMetrics
from control_plane.fleet.domain.counts import LOADING, FleetCounts
from control_plane.fleet.domain.fleet import Fleet, Server
from control_plane.fleet.domain.placement.placement import Obstacle
from control_plane.inference.retries.retry_budget import RetryKind
from control_plane.jobs.adapters.metrics import JobMetrics
from control_plane.jobs.domain.delivery import DeliveryKind, DeliveryState
from control_plane.jobs.ports import Backlog
from control_plane.models.domain.description import Tier
from control_plane.objects.domain.rollout import Phase, Rollout, Step
from control_plane.regions.adapters.metrics import RegionMetrics
from control_plane.regions.domain.region import Region
from control_plane.regions.domain.standing import Standing
from control_plane.regions.domain.verdict import RegionVerdict
from control_plane.rollout.adapters.metrics import RolloutMetrics
from control_plane.rollout.domain.findings import DISAGREEMENT, GATES, GateStatus
from control_plane.rollout.domain.machine import Hold
from control_plane.rollout.rollouts import RolloutStatus
from control_plane.settings import PROJECT_ROOT
from control_plane.telemetry.adapters.prometheus import OwnMetrics
from control_plane.telemetry.request_counts import (
    BUCKETS_S,
    BUDGET_RESULTS,
    BudgetCount,
    CacheStatusCount,
    Copied,
    CopiedCount,
    CopiedDurations,
    DeliveryCount,
    DurationHistogram,
    EventCount,
    FleetRefusalCount,
    Half,
    OutcomeCount,
    RegionCount,
    RequestCounts,
    RetryCount,
    ShedCount,
    UnitsCount,
)
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts
from control_plane.telemetry.shed_reason import ShedReason
from control_plane.telemetry.work_counts import PACE_BUCKETS_S, SIZES, UNIT_BUCKETS, SizeDurations, WorkCounts
from docs.generator.markdown import wrapped
from python_backends.batching import counts as batching
from python_backends.text_generator import counts as generation


def blocks() -> Iterator[str]:
    yield "# Metrics"
    yield wrapped(
        "The metrics port shows these and then what Triton's own page has (`nv_*`). Labels with a fixed set of values list them. "
        "With several workers each counts for itself and the page shows the sum."
    )
    yield "## Gateway"
    yield _metric_list(_own_page())
    yield "## Fleet"
    yield wrapped("Where there are several Tritons, or a memory budget. No label names a model, of which there may be thousands.")
    yield _metric_list(_fleet_page())
    yield "## Other regions"
    yield wrapped("Where `--region` is given. The label `region` has the names of `--regions-file`.")
    yield _metric_list(_regions_page())
    yield "## Models that Tidegate ships"
    yield wrapped("From their backends, on Triton's own page.")
    yield "\n".join(_metric(name, "counter", labels, meaning) for name, labels, meaning in _backend_rows())


def _own_page() -> str:
    frontends, name = [*Frontend], "any"
    attempts = [state for state in DeliveryState if state is not DeliveryState.WAITING]
    counts = RequestCounts(
        ended=tuple(OutcomeCount(name, frontend, outcome, 1) for frontend, outcome in product(frontends, Outcome)),
        took=tuple(DurationHistogram(name, frontend, (0,) * (len(BUCKETS_S) + 1), 1.0) for frontend in frontends),
        shed=tuple(ShedCount(name, reason, 1) for reason in ShedReason),
        units=(UnitsCount(name, 1.0),),
        cached=tuple(CacheStatusCount(name, status, 1) for status in CacheStatus),
        shared_cache=SharedCacheCounts(),
        retries=tuple(RetryCount(kind, is_allowed, 1) for kind, is_allowed in product(RetryKind, (True, False))),
        copied=tuple(CopiedCount(name, name, result, 1) for result in Copied),
        copied_took=tuple(CopiedDurations(name, name, half, (0,) * (len(BUCKETS_S) + 1), 1.0) for half in Half),
        deliveries=tuple(DeliveryCount(kind, state, 1) for kind, state in product(DeliveryKind, attempts)),
        budgets=tuple(BudgetCount(budget, name, name, each, 1) for budget, results in BUDGET_RESULTS.items() for each in results),
        events=tuple(EventCount(stream, is_published, 1) for stream, is_published in product(Stream, (True, False))),
        work=(_work(name),),
    )
    own = OwnMetrics(
        version=name,
        counts=lambda: counts,
        workers=lambda: 1,
        triton_is_up=lambda: True,
        state_behind_s=lambda: 0.0,
        cache_bytes=1,
        max_models=10,
        more=(FleetMetrics(FleetCounts()), RolloutMetrics(_rollouts), JobMetrics(lambda: Backlog(1, 1, 1, 0.0))),
    )
    return finish(own.render()).decode()


def _work(name: str) -> WorkCounts:
    sizes = tuple(SizeDurations(size, (0,) * (len(BUCKETS_S) + 1), 1.0) for size in SIZES)
    return WorkCounts(name, (0,) * (len(UNIT_BUCKETS) + 1), 1.0, (0,) * (len(PACE_BUCKETS_S) + 1), 1.0, sizes)


def _rollouts() -> list[tuple[Rollout, RolloutStatus]]:
    """Return rollouts in each phase that stay there for each reason."""
    gates = tuple(GateStatus(name, 0, 0, 0, 0, 0.0, 1.0) for name in (*GATES, DISAGREEMENT))
    rollout = Rollout("any", "", "any", "any", (Step(1, 1, 1.0),))
    return [(replace(rollout, phase=phase), RolloutStatus(gates, held_by=hold)) for phase, hold in product(Phase, Hold)]


def _fleet_page() -> str:
    fleet, counts = Fleet(), FleetCounts()
    fleet.add_server(Server("any", 1))
    counts.moved("any", source=Tier.COLD, target=Tier.WARM, size_bytes=1, took_s=1.0)
    requests = RequestCounts(refused=tuple(FleetRefusalCount(reason, 1) for reason in (LOADING, *(each.value for each in Obstacle))))
    registry = CollectorRegistry()
    registry.register(FleetMetrics(counts, lambda: requests, fleet=fleet, now_s=lambda: 0.0))
    page = generate_latest(registry).decode()
    return "\n".join(line for line in page.splitlines() if "tidegate_triton_losses" not in line) + "\n"


def _regions_page() -> str:
    region = Region("any", TcpAddress("any", 1), TcpAddress("any", 2))
    standing = Standing(region)
    standing.heard(1.0)
    counts = RequestCounts(regions=tuple(RegionCount("any", verdict.value, 1) for verdict in RegionVerdict))
    registry = CollectorRegistry()
    registry.register(RegionMetrics(lambda: [standing], lambda: counts))
    return generate_latest(registry).decode()


def _metric_list(page: str) -> str:
    entries = []
    for family in sorted(text_string_to_metric_families(page), key=lambda family: family.name):
        values: dict[str, dict[str, None]] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                values.setdefault(label, {})[value] = None
        labels = "; ".join(_label(label, [*found]) for label, found in sorted(values.items()) if label != "le")
        suffix = "_total" if family.type == "counter" else ""
        entries.append(_metric(f"`{family.name}{suffix}`", family.type, labels, family.documentation))
    return "\n".join(entries)


def _metric(name: str, kind: str, labels: str, meaning: str) -> str:
    # A list, not a table: a row of a table cannot be wrapped, and the longest had 400 characters.
    entry = wrapped(f"* {name}, {kind}: {meaning}", indent="  ")
    return entry + ("\n  " + wrapped(f"Labels: {labels}.", indent="  ") if labels else "")


def _label(name: str, values: Sequence[str]) -> str:
    return f"`{name}`: {', '.join(f'`{value}`' for value in values)}" if len(values) > 1 else f"`{name}`"


def _backend_rows() -> Iterator[tuple[str, str, str]]:
    labels = "`model`, `version`, `variant`"
    for name, meaning in batching.COUNTERS.items():
        yield f"`tidegate_batching_{name}`", labels, f"{meaning}."
    for name, meaning in (generation.COUNTERS | generation.GAUGES).items():  # type: ignore[operator]
        yield f"`tidegate_generation_{name}`", labels, f"{meaning}."
    # Read, not imported: only Triton's stubs can import it.
    constants = _constants(PROJECT_ROOT / "python_backends" / "runtime" / "variants" / "served_variant.py")
    yield f"`{constants['NAME']}`", f"{labels}, `reason`", f"{constants['DESCRIPTION']}."


def _constants(module: Path) -> dict[str, object]:
    statements = (each for each in ast.parse(module.read_text()).body if isinstance(each, ast.Assign))
    return {
        each.targets[0].id: each.value.value
        for each in statements  # type: ignore[attr-defined]
        if isinstance(each.value, ast.Constant) and isinstance(each.targets[0], ast.Name)
    }
