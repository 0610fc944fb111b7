"""The page of our own metrics, `tidegate_*`, in Prometheus' text format.

`telemetry/metrics_text` renders the metrics per model, of which there may be many; the client library renders
all others. With several workers each process counts for itself, and the page shows the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from control_plane.core.algorithms.steps import Steps
from control_plane.telemetry.adapters.metric_labels import BoundedCounts
from control_plane.telemetry.metrics_text import request_metrics_steps
from control_plane.telemetry.request_counts import BUCKETS_S, RequestCounts
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts


class OwnMetrics:
    """Renderer of the metrics page; it has a registry of its own, so that nothing is global."""

    def __init__(
        self,
        *,
        version: str,
        counts: Callable[[], RequestCounts],
        workers: Callable[[], int],
        triton_is_up: Callable[[], bool],
        state_behind_s: Callable[[], float],
        events_behind_s: Callable[[], float] = lambda: 0.0,
        cache_bytes: int,
        max_models: int,
        more: Sequence[Collector] = (),
    ) -> None:
        """Register the metrics; each callable returns its value at the time of a scrape.

        `cache_bytes` is the bound of the response cache; `max_models` the models, and as many tenants, that
        the page tells apart; `more` are collectors of what other parts have.
        """
        self._counts, self._bounded = counts, BoundedCounts(max_models)
        self._shown = RequestCounts()
        self._registry = CollectorRegistry()
        self._registry.register(_Requests(lambda: self._shown))
        self._registry.register(_ResponseCache(lambda: self._shown))
        for collector in more:
            self._registry.register(collector)
        Gauge("tidegate_workers", "Processes that serve the data ports now.", registry=self._registry).set_function(workers)
        Gauge("tidegate_triton_up", "1 while Triton accepts requests, else 0.", registry=self._registry).set_function(
            lambda: float(triton_is_up())
        )
        Gauge(
            "tidegate_state_behind_seconds",
            "Seconds since keys, tenants and routes were last known to be current; 0 while the state store can be reached.",
            registry=self._registry,
        ).set_function(state_behind_s)
        Gauge(
            "tidegate_events_behind_seconds",
            "Seconds since usage and audit were last published as far as they are stored; 0 while they are, and without --events-url.",
            registry=self._registry,
        ).set_function(events_behind_s)
        Gauge(
            "tidegate_cache_max_bytes", "Bytes that the response cache may take in memory, over all workers.", registry=self._registry
        ).set(cache_bytes)
        Gauge("tidegate_build_info", "Always 1; the label has the running version.", ("version",), registry=self._registry).labels(
            version
        ).set(1)

    def render(self) -> Steps[bytes]:
        """Render the page with present values, in cooperative steps."""
        # Summed once for all collectors: with many models and workers the sum takes a while.
        self._shown = self._bounded.of(self._counts())
        by_model = yield from request_metrics_steps(self._shown)
        return by_model + generate_latest(self._registry)


class _ResponseCache(Collector):
    """Collector of the response cache's metrics, of both levels."""

    def __init__(self, counts: Callable[[], RequestCounts]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts()
        holding = counts.holding
        yield GaugeMetricFamily(
            "tidegate_cache_entries", "Responses in the response cache in memory, over all workers.", value=holding.entries
        )
        yield GaugeMetricFamily(
            "tidegate_cache_bytes", "Bytes that cached responses take in memory, over all workers.", value=holding.held_bytes
        )
        yield CounterMetricFamily(
            "tidegate_cache_evictions",
            "Responses evicted from the response cache in memory to make room for others.",
            value=holding.evicted,
        )
        if counts.shared_cache is not None:
            yield from _shared_cache(counts.shared_cache, counts.shared_cache_away, counts.shared_cache_answer_s)


def _retries(counts: RequestCounts) -> Iterator[Metric]:
    retries = CounterMetricFamily(
        "tidegate_retries",
        "Requests to be sent to servers beyond what clients asked for, by kind (resend, hedge, mirror) and by whether the retry budget "
        "allowed it: result sent or refused.",
        labels=("kind", "result"),
    )
    for each in counts.retries:
        retries.add_metric((each.kind, "sent" if each.is_allowed else "refused"), each.count)
    yield retries
    yield from _copies(counts)
    yield from _budgets(counts)
    deliveries = CounterMetricFamily(
        "tidegate_job_deliveries",
        "Attempts to deliver what jobs have come to, by kind (output, webhook) and by what became of them: delivered, pending (it is "
        "repeated), failed or gone.",
        labels=("kind", "result"),
    )
    for delivery in counts.deliveries:
        deliveries.add_metric((delivery.kind, delivery.result), delivery.count)
    yield deliveries
    published = CounterMetricFamily("tidegate_events_published", "Events published to the streams of --events-url.", labels=("stream",))
    dropped = CounterMetricFamily(
        "tidegate_events_dropped", "Events that subscribers do not get, since they could not be sent in time.", labels=("stream",)
    )
    for told in counts.events:
        (published if told.is_published else dropped).add_metric((told.stream,), told.count)
    yield published
    yield dropped
    found, refused = counts.queries_of_death.found, counts.queries_of_death.refused
    help_text = "Requests that were found to end the processes that compute them (queries of death)."
    yield CounterMetricFamily("tidegate_queries_of_death", help_text, value=found)
    help_text = "Requests refused since processes had died under them before."
    yield CounterMetricFamily("tidegate_queries_of_death_refused", help_text, value=refused)


def _copies(counts: RequestCounts) -> Iterator[Metric]:
    help_text = (
        "Requests to be copied to a route's mirror, or to the next model of its rollout in its shadow, by route, by that model, and by "
        "what became of them."
    )
    copied = CounterMetricFamily("tidegate_copied_requests", help_text, labels=("route", "model", "result"))
    for each in counts.copied:
        copied.add_metric((each.route, each.model, each.result), each.count)
    yield copied
    help_text = (
        "Seconds from the sending of a copied request to its answer, by route, by the model that it was copied to, and by half of the "
        "pair: original or copy. Only of pairs that were both answered; none of embeddings."
    )
    took = HistogramMetricFamily("tidegate_copied_request_duration_seconds", help_text, labels=("route", "model", "half"))
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    for half in counts.copied_took:
        buckets = list(zip(bounds, accumulate(half.buckets), strict=True))  # Prometheus' are cumulative
        took.add_metric((half.route, half.model, half.half), buckets, half.seconds)
    yield took


def _budgets(counts: RequestCounts) -> Iterator[Metric]:
    said = {
        "latency": "Answers to requests with a latency budget, by route, by the model that was chosen, and by whether they came within it: "
        "result within or late.",
        "cost": "Answers to requests with a cost budget, by route, by the model that was chosen, and by whether they were expected to cost "
        "no more: result within, over, or unknown where nothing was known of the model's cost yet.",
    }
    for budget, help_text in said.items():
        found = CounterMetricFamily(f"tidegate_{budget}_budget_requests", help_text, labels=("route", "model", "result"))
        for each in counts.budgets:
            if each.budget == budget:
                found.add_metric((each.route, each.model, each.result), each.count)
        yield found


def _shared_cache(counts: SharedCacheCounts, away: int, answer_s: float) -> Iterator[Metric]:
    lookups = asdict(counts)
    writes = {name: lookups.pop(name) for name in ("written", "dropped")}
    lookups = {"hit": lookups.pop("hits"), "miss": lookups.pop("misses"), **lookups}
    yield _by_result("tidegate_shared_cache_lookups", "Keys looked up in the Redis of --cache-url, by result.", lookups)
    yield _by_result("tidegate_shared_cache_writes", "Responses to be stored in the Redis of --cache-url, by result.", writes)
    help_text = "Processes that do not use the Redis of --cache-url now, since it cannot be reached or does not answer."
    yield GaugeMetricFamily("tidegate_shared_cache_away", help_text, value=away)
    help_text = "Present response time of the Redis of --cache-url in seconds, as processes measure it; the longest of all workers."
    yield GaugeMetricFamily("tidegate_shared_cache_answer_seconds", help_text, value=answer_s)


def _by_result(name: str, help_text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=("result",))
    for result, count in counts.items():
        family.add_metric((result,), count)
    return family


class _Requests(Collector):
    """Collector of requests that were shed or not metered, and of those in flight."""

    def __init__(self, counts: Callable[[], RequestCounts]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts()
        shed = CounterMetricFamily(
            "tidegate_requests_shed",
            "Valid and permitted requests refused because a limit was exceeded (load shedding).",
            labels=("tenant", "reason"),
        )
        for turned_away in counts.shed:
            shed.add_metric((turned_away.tenant, turned_away.reason.value), turned_away.count)
        yield shed
        units = CounterMetricFamily(
            "tidegate_compute_units", "Compute units that the tenant's requests and jobs have used.", labels=("tenant",)
        )
        for used in counts.units:
            units.add_metric((used.tenant,), used.count)
        yield units
        yield CounterMetricFamily(
            "tidegate_usage_dropped",
            "Requests served but not metered, since too many usage sums waited to be written.",
            value=counts.unmetered,
        )
        yield CounterMetricFamily("tidegate_spans_lost", "OpenTelemetry spans that the collector did not take.", value=counts.spans_lost)
        yield from _retries(counts)
        yield GaugeMetricFamily("tidegate_requests_in_flight", "Inference requests in flight now.", value=counts.in_flight)
        yield GaugeMetricFamily(
            "tidegate_event_loop_late_seconds",
            "Largest lag of an event loop in the last ten seconds, of the process where it is largest; requests wait longer than that.",
            value=counts.loop_late_s,
        )
