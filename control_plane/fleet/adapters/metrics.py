"""Prometheus metrics of a fleet, `tidegate_fleet_*`: gauges are read from the view when the page is
requested, counters from `FleetCounts`.

No metric has a label for models, of which there may be thousands. Servers are few; their label is the one
that Triton's own samples get.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from control_plane.core.model import ModelState
from control_plane.fleet.domain.counts import LOAD_BUCKETS_S, FleetCounts, Hedge
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import Fleet, Server
from control_plane.fleet.domain.placement.offered_work import OfferedWork, Requests, loading_s, pending_s, pools, serving
from control_plane.fleet.view.state import NO_BUDGET
from control_plane.models.domain.description import Tier
from control_plane.telemetry.request_counts import OTHER, RequestCounts
from control_plane.telemetry.shed_reason import ShedReason

_STATES = (ModelState.READY, ModelState.LOADING, ModelState.UNLOADING)


_FOR_WANT_OF_SERVERS = frozenset((ShedReason.QUEUE_FULL, ShedReason.DEADLINE))


class FleetMetrics(Collector):
    """Prometheus collector over one process's view of its fleet."""

    def __init__(
        self,
        counts: FleetCounts,
        requests: Callable[[], RequestCounts] = RequestCounts,
        *,
        fleet: Fleet | None = None,
        is_leader: Callable[[], bool] = lambda: False,
        losses: Callable[[], int] = lambda: 0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`requests` returns the counts of all processes that answer the data ports. `losses` is how often a
        Triton has gone down by itself, and `now_s` the event loop's time. Without `fleet` there is one
        Triton, whose models may come from a store all the same."""
        self._losses = losses
        self._counts = counts
        self._requests = requests
        self._fleet = fleet
        self._is_leader = is_leader
        self._now_s = now_s
        self._offered = OfferedWork()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, in the order of the page."""
        help_text = "Times that a Triton which was up crashed or stopped answering."
        yield CounterMetricFamily("tidegate_triton_losses", help_text, value=self._losses())
        if self._fleet is not None:
            yield from self._of_servers(list(self._fleet.servers.values()))
            yield from self._of_models(self._fleet)
            yield from self._of_pools(self._fleet)
            yield from self._of_loads()
            yield from _of_requests(self._requests())
        if self._fleet is not None or self._counts.moves:
            yield from self._of_moves()

    def _of_servers(self, servers: Sequence[Server]) -> Iterator[Metric]:
        yield _by_server("up", "1 while the server is up.", [(each.name, each.is_up) for each in servers])
        help_text = "1 while the server gets no requests but probes, since it answers too slowly or with errors."
        yield _by_server("ejected", help_text, [(each.name, each.is_ejected) for each in servers])
        help_text = "1 while the server says nothing, though it is not known to be down: requests go to others."
        yield _by_server("silent", help_text, [(each.name, each.is_silent) for each in servers])
        help_text = "1 while the server is drained to leave the fleet: it gets no new requests and no models."
        yield _by_server("leaving", help_text, [(each.name, each.is_draining) for each in servers])
        # No sample instead of a meaningless huge number.
        bounded = [(each.name, each.budget_bytes) for each in servers if each.budget_bytes < NO_BUDGET]
        yield _by_server("budget_bytes", "Bytes that models may take on the server; missing where there is no bound.", bounded)
        help_text = "Bytes of the models on the server that are loaded, being loaded, or not surely gone."
        yield _by_server("held_bytes", help_text, [(each.name, each.held_bytes) for each in servers])
        replicas = GaugeMetricFamily("tidegate_fleet_replicas", "Replicas of models on the server, by state.", labels=("server", "state"))
        for server in servers:
            states = Counter(replica.state for replica in server.replicas.values())
            for state in _STATES:
                replicas.add_metric((server.name, state.value), states[state])
        yield replicas

    def _of_models(self, fleet: Fleet) -> Iterator[Metric]:
        facts_of = fleet.models
        # As `Fleet.nearest_tier` has it, but by what is loaded, of which there is little: asked of each of thousands of models it
        # holds the event loop for milliseconds.
        ready = {
            name for server in fleet.servers.values() for name, replica in server.replicas.items() if replica.state is ModelState.READY
        }
        tiers = Counter([facts.tier for facts in facts_of.values()])
        tiers.subtract(facts_of[name].tier for name in ready if name in facts_of)
        tiers[Tier.HOT] += sum(name in facts_of for name in ready)
        models = GaugeMetricFamily("tidegate_fleet_models", "Models by the nearest tier that has them.", labels=("tier",))
        for tier in Tier:
            models.add_metric((tier.value,), tiers[tier])
        yield models
        now_s = self._now_s()
        quarantined = sum([facts.quarantined_until_s > now_s for facts in facts_of.values()])
        help_text = "Models in quarantine: they failed to load, and are not tried again yet."
        yield GaugeMetricFamily("tidegate_fleet_quarantined_models", help_text, value=quarantined)
        help_text = "1 while this process is the one that loads and unloads the fleet's models."
        yield GaugeMetricFamily("tidegate_fleet_leader", help_text, value=float(self._is_leader()))

    def _of_pools(self, fleet: Fleet) -> Iterator[Metric]:
        """What an autoscaler of servers needs; the empty pool is always there."""
        self._offered.count(_offered(self._requests()), fleet)
        names = pools(fleet)
        help_text = (
            "Seconds of a whole server that requests asked for, those included that were shed since a queue was full or a deadline could "
            "not be met. Its rate is how many servers would be busy all the time."
        )
        offered = CounterMetricFamily("tidegate_fleet_offered_seconds", help_text, labels=("pool",))
        for pool, seconds in sorted(self._offered.seconds.items()):
            offered.add_metric((pool,), seconds)
        yield offered
        help_text = (
            "Seconds of a whole server that the requests at the pool's servers will take; complete where tidegate_fleet_leader is 1."
        )
        yield _by_pool("pending_seconds", help_text, {pool: pending_s(fleet, pool) for pool in names})
        help_text = "Seconds until the last load that runs or waits in the pool is expected to end."
        yield _by_pool("loading_seconds", help_text, {pool: loading_s(fleet, pool, self._now_s()) for pool in names})
        help_text = "Servers of the pool that take requests."
        yield _by_pool("pool_servers", help_text, {pool: serving(fleet, pool) for pool in names})

    def _of_loads(self) -> Iterator[Metric]:
        counts = self._counts
        help_text = (
            "What has happened to replicas of models (loaded, evicted, unloaded, failed to load, lost) and to servers (down, up again, "
            "ejected, readmitted, silent, answering again)."
        )
        events = CounterMetricFamily("tidegate_fleet_events", help_text, labels=("kind",))
        for kind in FleetEventKind:
            events.add_metric((kind.value,), counts.events[kind])
        yield events
        help_text = "Duration of a load from its turn on its server, with the evictions before it and its fetch."
        yield _histogram("tidegate_fleet_load_duration_seconds", help_text, counts.loads.buckets, counts.loads.seconds)

    def _of_moves(self) -> Iterator[Metric]:
        moves = self._counts.moves
        for name, help_text, values in (
            ("moves", "Models moved between tiers.", {way: move.count for way, move in moves.items()}),
            ("moved_bytes", "Bytes of models moved between tiers.", {way: move.bytes for way, move in moves.items()}),
            ("move_seconds", "Seconds that moves between tiers took.", {way: move.seconds for way, move in moves.items()}),
            ("move_failures", "Moves between tiers that failed.", {way: move.failed for way, move in moves.items()}),
        ):
            family = CounterMetricFamily(f"tidegate_fleet_{name}", help_text, labels=("source", "target"))
            for (source, target), value in values.items():
                family.add_metric((source.value, target.value), value)
            yield family


def _by_server(name: str, help_text: str, values: Sequence[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(f"tidegate_fleet_server_{name}", help_text, labels=("server",))
    for server, value in values:
        family.add_metric((server,), float(value))
    return family


def _by_pool(name: str, help_text: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"tidegate_fleet_{name}", help_text, labels=("pool",))
    for pool, value in values.items():
        family.add_metric((pool,), float(value))
    return family


def _offered(counts: RequestCounts) -> Requests:
    """Requests that took a server's time, or would have: neither those that the cache answered nor those that no
    number of servers would have let in."""
    computed = {each.model: each.count for each in counts.computed}
    unnamed = computed.pop(OTHER, 0)
    return Requests(computed, sum(each.count for each in counts.shed if each.reason in _FOR_WANT_OF_SERVERS), unnamed)


def _of_requests(counts: RequestCounts) -> Iterator[Metric]:
    help_text = "Time that requests waited for their model, for those that had to wait and were then served."
    buckets = counts.waited.buckets or [0] * (len(LOAD_BUCKETS_S) + 1)
    yield _histogram("tidegate_fleet_wait_duration_seconds", help_text, buckets, counts.waited.seconds)
    help_text = "Requests refused since their model would not have been ready in time, by reason."
    refused = CounterMetricFamily("tidegate_fleet_requests_refused", help_text, labels=("reason",))
    for each in counts.refused:
        refused.add_metric((each.reason,), each.count)
    yield refused
    help_text = (
        "Requests that were late enough for a second server, by what became of that: it won, lost, failed, or was not asked at "
        "first since no other server was idle (no_idle_server)."
    )
    hedges = CounterMetricFamily("tidegate_fleet_hedges", help_text, labels=("result",))
    hedged = {each.result: each.count for each in counts.hedges}
    for result in Hedge:
        hedges.add_metric((result.value,), hedged.get(result, 0))
    yield hedges
    help_text = "Compute units that second servers were expected to spend on requests that another one was computing."
    yield CounterMetricFamily("tidegate_fleet_hedged_compute_units", help_text, value=counts.hedged_units)


def _histogram(name: str, help_text: str, counted: Sequence[int], seconds: float) -> Metric:
    """Prometheus buckets are cumulative; ours are not."""
    bounds = [*map(str, LOAD_BUCKETS_S), "+Inf"]
    family = HistogramMetricFamily(name, help_text)
    family.add_metric((), list(zip(bounds, accumulate(counted), strict=True)), seconds)
    return family
