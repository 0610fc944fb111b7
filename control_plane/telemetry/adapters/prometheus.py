"""The page of our own metrics, `tidegate_*`, in Prometheus' text format.

What is counted by model, of which there may be many, is written by `telemetry/metrics_text`, all else by the client library. With several
workers each counts for itself and the page shows the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from control_plane.core.steps import Steps
from control_plane.telemetry.adapters.metric_labels import BoundedCounts
from control_plane.telemetry.metrics_text import request_metrics_steps
from control_plane.telemetry.request_counts import RequestCounts
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts


class OwnMetrics:
    """The page of all our own metrics; one registry of its own, so that nothing is global."""

    def __init__(
        self,
        *,
        version: str,
        counts: Callable[[], RequestCounts],
        workers: Callable[[], int],
        triton_is_up: Callable[[], bool],
        state_behind_s: Callable[[], float],
        cache_bytes: int,
        most_models: int,
        fleet: Collector | None = None,
    ) -> None:
        """`cache_bytes` is what the response cache may hold; `most_models`, and as many tenants, the page tells apart; `fleet` is
        `fleet/adapters/metrics`."""
        self._counts, self._bounded = counts, BoundedCounts(most_models)
        self._shown = RequestCounts()
        self._registry = CollectorRegistry()
        self._registry.register(_Requests(lambda: self._shown))
        self._registry.register(_ResponseCache(lambda: self._shown))
        if fleet is not None:
            self._registry.register(fleet)
        Gauge("tidegate_workers", "Processes that answer the data ports now.", registry=self._registry).set_function(workers)
        Gauge("tidegate_triton_up", "1 while Triton can be asked.", registry=self._registry).set_function(lambda: float(triton_is_up()))
        Gauge(
            "tidegate_state_behind_seconds",
            "Seconds since the state store last confirmed what is known of keys, tenants and routes; 0 while it can be reached.",
            registry=self._registry,
        ).set_function(state_behind_s)
        Gauge("tidegate_cache_max_bytes", "Bytes that the response cache may take in memory, of all workers.", registry=self._registry).set(
            cache_bytes
        )
        Gauge("tidegate_build_info", "The version that is running.", ("version",), registry=self._registry).labels(version).set(1)

    def render(self) -> Steps[bytes]:
        """The page as of now."""
        self._shown = self._bounded.of(self._counts())  # once: with many models and workers the sum takes a while
        by_model = yield from request_metrics_steps(self._shown)
        return by_model + generate_latest(self._registry)


class _ResponseCache(Collector):
    """What the response cache did, and what is in it."""

    def __init__(self, counts: Callable[[], RequestCounts]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts()
        holding = counts.holding
        yield GaugeMetricFamily(
            "tidegate_cache_entries", "Answers that the response cache holds in memory, of all workers.", value=holding.entries
        )
        yield GaugeMetricFamily(
            "tidegate_cache_bytes", "Bytes that the response cache's answers take in memory, of all workers.", value=holding.held_bytes
        )
        yield CounterMetricFamily(
            "tidegate_cache_evictions",
            "Answers that the response cache has dropped from memory to make room for others.",
            value=holding.evicted,
        )
        if counts.shared_cache is not None:
            yield from _shared_cache(counts.shared_cache, counts.shared_cache_away, counts.shared_cache_answer_s)


def _shared_cache(counts: SharedCacheCounts, away: int, answer_s: float) -> Iterator[Metric]:
    lookups = asdict(counts)
    writes = {name: lookups.pop(name) for name in ("written", "dropped")}
    lookups = {"hit": lookups.pop("hits"), "miss": lookups.pop("misses"), **lookups}
    yield _by_result("tidegate_shared_cache_lookups", "Keys looked up in the Redis of --cache-url, by what came of it.", lookups)
    yield _by_result("tidegate_shared_cache_writes", "Answers to be kept in the Redis of --cache-url, by what became of them.", writes)
    help_text = "Processes that do not ask the Redis of --cache-url now, since it cannot be reached or does not answer."
    yield GaugeMetricFamily("tidegate_shared_cache_away", help_text, value=away)
    help_text = "What an answer of the Redis of --cache-url takes now, as processes experience it; of several workers the longest."
    yield GaugeMetricFamily("tidegate_shared_cache_answer_seconds", help_text, value=answer_s)


def _by_result(name: str, help_text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=("result",))
    for result, count in counts.items():
        family.add_metric((result,), count)
    return family


class _Requests(Collector):
    """Requests that were turned away or not metered, and those under way."""

    def __init__(self, counts: Callable[[], RequestCounts]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts()
        shed = CounterMetricFamily(
            "tidegate_requests_shed", "Requests turned away though allowed and in order.", labels=("tenant", "reason")
        )
        for turned_away in counts.shed:
            shed.add_metric((turned_away.tenant, turned_away.reason.value), turned_away.count)
        yield shed
        yield CounterMetricFamily("tidegate_usage_dropped", "Requests not metered, since too many sums waited.", value=counts.unmetered)
        yield GaugeMetricFamily("tidegate_requests_in_flight", "Inference requests being answered now.", value=counts.in_flight)
