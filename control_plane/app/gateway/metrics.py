"""Wires the metrics page of one gateway: the source of each count."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import version

from prometheus_client.registry import Collector

from control_plane.app.data_plane.data_plane import DataPlane, units_of
from control_plane.app.data_plane.request_services import RequestServices
from control_plane.app.gateway.events import EventServices
from control_plane.app.upstreams.servers import Tritons
from control_plane.fleet.adapters.metrics import FleetMetrics
from control_plane.frontends.metrics_page import MetricsPage
from control_plane.jobs.adapters.metrics import JobMetrics
from control_plane.regions.adapters.metrics import RegionMetrics
from control_plane.regions.regions import Regions
from control_plane.rollout.adapters.metrics import RolloutMetrics
from control_plane.rollout.rollouts import Rollouts
from control_plane.settings import Settings
from control_plane.telemetry.adapters.prometheus import OwnMetrics
from control_plane.telemetry.request_counts import RequestCounts
from control_plane.workers.parent.workers import Workers


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of the processes that answer the data ports, which may be this one alone."""

    frontends: Workers | DataPlane
    services: RequestServices
    events: EventServices

    def counts(self) -> RequestCounts:
        told = self.events.counts()
        if isinstance(self.frontends, DataPlane):
            return replace(self.frontends.counts(), events=(*self.services.events.counts(), *told))
        # What Triton has computed is charged here, by its statistics, whichever worker asked for it.
        return self.frontends.counts(RequestCounts(units=units_of(self.services.metering), events=told))

    def listening(self) -> int:
        """Processes that accept requests now."""
        return 1 if isinstance(self.frontends, DataPlane) else self.frontends.listening


def make_metrics_page(
    settings: Settings, counted: Counted, tritons: Tritons, rollouts: Rollouts, regions: Regions | None = None
) -> MetricsPage:
    """Make the page of the metrics port."""
    services, servers, most = counted.services, tritons.servers, settings.gateway.max_metric_models
    more: list[Collector] = [_fleet_metrics(counted, tritons), RolloutMetrics(lambda: rollouts.latest(most))]
    if regions is not None:
        more.append(RegionMetrics(lambda: regions.standings, counted.counts))
    backlog = None if services.jobs is None else services.jobs.backlog
    if backlog is not None:
        more.append(JobMetrics(lambda: backlog.latest))
    own = OwnMetrics(
        version=version("tidegate"),
        counts=counted.counts,
        workers=counted.listening,
        triton_is_up=lambda: servers.is_answering,
        state_behind_s=lambda: services.known.behind_s,
        events_behind_s=lambda: counted.events.behind_s,
        cache_bytes=settings.cache.cache_bytes,
        max_models=most,
        more=more,
    )
    read = None if backlog is None else backlog.read
    return MetricsPage(render_own=own.render, servers=servers, access=services.governance.access, read=read)


def _fleet_metrics(counted: Counted, tritons: Tritons) -> FleetMetrics:
    fleet, servers = tritons.fleet, tritons.servers
    if fleet is None:
        return FleetMetrics(tritons.counts, losses=lambda: servers.losses)
    return FleetMetrics(
        tritons.counts,
        counted.counts,
        fleet=fleet.state.fleet,
        is_leader=lambda: fleet.is_leader,
        losses=lambda: servers.losses,
        now_s=fleet.state.now_s,
    )
