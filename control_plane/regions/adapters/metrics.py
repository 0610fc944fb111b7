"""Prometheus metrics of the other regions, `tidegate_region_*`, read when the page is requested."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import isfinite

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from control_plane.regions.domain.standing import Standing
from control_plane.telemetry.request_counts import RequestCounts


class RegionMetrics(Collector):
    """Prometheus collector over the other regions; their names are those of the file that lists them."""

    def __init__(self, standings: Callable[[], Iterable[Standing]], counts: Callable[[], RequestCounts]) -> None:
        """`counts` returns the counts of all processes."""
        self._standings = standings
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, in the order of the page."""
        well = GaugeMetricFamily(
            "tidegate_region_up", "1 while the region's gateway answers probes and says that it is ready, else 0.", labels=("region",)
        )
        round_trip = GaugeMetricFamily(
            "tidegate_region_round_trip_seconds", "Time of a probe of the region, a mean of the last ones.", labels=("region",)
        )
        for standing in self._standings():
            labels = (standing.region.name,)
            well.add_metric(labels, float(standing.is_well))
            if isfinite(standing.round_trip_s):
                round_trip.add_metric(labels, standing.round_trip_s)
        counts = self._counts()
        sent = CounterMetricFamily(
            "tidegate_region_requests",
            "Requests sent to another region, by what became of them: answered, full (it had no idle room), model_missing, "
            "unauthenticated, denied, limited, invalid, quarantined (processes died of it), failed, unreachable, lost or left (by their "
            "callers).",
            labels=("region", "result"),
        )
        for each in counts.regions:
            sent.add_metric((each.region, each.result), each.count)
        yield from (well, round_trip, sent)
        help_text = "Requests of other regions that came here; those refused are tidegate_requests_shed_total with reason no_idle_room."
        yield CounterMetricFamily("tidegate_region_guests", help_text, value=counts.guests)
