"""Prometheus metrics of rollouts, `tidegate_rollout_*`, read when the page is requested.

Every gateway shows the rollouts that all of them share. A series is there while its rollout is the last one of its route.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from control_plane.objects.domain.rollout import Rollout
from control_plane.objects.domain.route import WHOLE, arm_name
from control_plane.rollout.rollouts import RolloutStatus

_LABELS = ("route", "model")


class RolloutMetrics(Collector):
    """Prometheus collector over the rollouts of one gateway."""

    def __init__(self, latest: Callable[[], Iterable[tuple[Rollout, RolloutStatus]]]) -> None:
        """`latest` returns those that are shown."""
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, in the order of the page."""
        weight = _gauge("weight", "Part of the route's requests that the rollout's next model gets.")
        phase = _gauge("phase", "Always 1; the label has the present phase of the route's last rollout.", "phase")
        help_text = (
            "1 while the rollout stays at its step, by why: it is paused, what other gateways have seen is not known (evidence), too few "
            "requests were computed (samples), the time is not over, or copies of the next model are being loaded."
        )
        held = _gauge("held", help_text, "reason")
        help_text = "Evidence that the next model is worse, as part of that at which it is rolled back, by gate."
        evidence = _gauge("gate_evidence", help_text, "gate")
        for rollout, status in self._latest():
            names = (rollout.route, arm_name(rollout.model, rollout.version))
            weight.add_metric(names, rollout.weight / WHOLE)
            phase.add_metric((*names, rollout.phase.value), 1.0)
            if not rollout.is_under_way:
                continue
            if status.held_by is not None:
                held.add_metric((*names, status.held_by.value), 1.0)
            for gate in status.gates:
                evidence.add_metric((*names, gate.name), max(0.0, gate.log_evidence / gate.fails_at))
        yield from (weight, phase, held, evidence)


def _gauge(name: str, help_text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tidegate_rollout_{name}", help_text, labels=(*_LABELS, *labels))
