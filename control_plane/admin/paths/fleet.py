"""The admin API's view of the fleet: servers with their replicas, models, and recent events."""

from __future__ import annotations

from fastapi import FastAPI, Response

from control_plane.admin.errors import error_responses
from control_plane.admin.rendering import rendered
from control_plane.admin.schema.described import Described
from control_plane.core.errors import ErrorCode, RouteNotFound
from control_plane.core.model import ModelState
from control_plane.fleet.domain.event import FleetEvent, FleetEventKind
from control_plane.fleet.domain.fleet import NEVER_S, ModelFacts, Replica, Server
from control_plane.fleet.fleet_service import FleetService
from control_plane.fleet.view.state import NO_BUDGET
from control_plane.models.domain.description import Tier

_NO_FLEET = (
    "this tidegate serves one Triton without loading on demand: `tidegate models list` shows its models; "
    "--servers, --memory-budget, --servers-file or several --triton-url make a fleet"
)


class ReplicaView(Described):
    """A replica: one model on one server."""

    model: str
    state: ModelState
    bytes: int
    """Memory that counts for it; 0 for an ensemble's step, which counts with the ensemble, and before its
    load starts."""
    in_flight: int
    sequences: int
    """Sequences in progress; the replica is not unloaded before they end."""
    idle_s: float | None
    """Seconds since a request last used it; null: none has."""
    ready_in_s: float | None
    """Expected seconds until it is ready; null unless it is loading."""


class ServerView(Described):
    """A server of the fleet: one Triton."""

    name: str
    is_up: bool
    is_ejected: bool
    """Whether it is ejected (outlier detection): it answers too slowly or with errors, and gets only
    probes."""
    is_silent: bool
    """Whether it says nothing, though it is not known to be down: it gets only requests that no other server could
    take."""
    is_draining: bool
    """Whether it is draining: it gets no new requests and leaves the fleet when those it has are done."""
    pool: str
    """Pool that it belongs to; empty: it serves all pools."""
    labels: dict[str, str]
    budget_bytes: int | None
    """Bytes that models may take; null: no bound."""
    held_bytes: int
    """Bytes of models that are loaded, loading, or not yet known to be unloaded."""
    replicas: list[ReplicaView]


class FleetModelView(Described):
    """A model of the fleet: its tier, its servers, its costs and its demand."""

    name: str
    tier: Tier
    """The nearest tier that has it: hot (ready on a server), warm (on this machine) or cold (in a model
    store)."""
    servers: list[str]
    resident_bytes: int
    load_s: float
    """Expected seconds of a load, including the fetch."""
    fetch_s: float
    """Expected seconds of the fetch alone; 0 for a model on this machine."""
    fetch_bytes: int | None
    """Bytes to fetch; null: not yet known."""
    uses_per_s: float
    """Expected requests per second."""
    min_replicas: int
    max_replicas: int | None
    quarantined_for_s: float
    """Seconds until a load is tried again after it failed; 0: the model is not quarantined."""
    why_quarantined: str
    is_suspended: bool
    """Whether an administrator has unloaded it, so that requests do not load it again."""


class FleetEventView(Described):
    """An event of the fleet: what happened to a model or a server, when and why."""

    at_s: float
    kind: FleetEventKind
    model: str
    """Empty for events of a server."""
    server: str
    reason: str
    seconds: float


class FleetView(Described):
    """The fleet as this process sees it."""

    is_leader: bool
    """Whether this process is the fleet's leader, which loads and unloads. Only the leader shows events and
    expectations."""
    servers: list[ServerView]
    models: list[FleetModelView]
    events: list[FleetEventView]
    """Newest last."""
    notes: list[str]
    """What some servers lack, and why, a sentence each."""


def add_fleet_path(app: FastAPI, fleet: FleetService | None) -> None:
    """Add `/fleet`."""

    @app.get("/fleet", tags=["fleet"], response_model=FleetView, responses=error_responses(ErrorCode.ROUTE_NOT_FOUND))
    async def show() -> Response:
        """Servers with their replicas, models by tier, and recent events."""
        if fleet is None:
            raise RouteNotFound(_NO_FLEET)
        state, now_s = fleet.state, fleet.state.now_s()
        events = [_event(event) for event in fleet.state.events.latest]
        rest = FleetView(is_leader=fleet.is_leader, servers=[], models=[], events=events, notes=list(fleet.notes()))
        servers = await rendered(_server(server, now_s) for server in list(state.fleet.servers.values()))
        models = await rendered(_model(facts, fleet, now_s) for _, facts in sorted(state.fleet.models.items()))
        others = rest.model_dump_json(exclude={"servers", "models"}).removesuffix("}")
        return Response(f'{others},"servers":[{servers}],"models":[{models}]}}', media_type="application/json")


def _server(server: Server, now_s: float) -> ServerView:
    return ServerView(
        name=server.name,
        is_up=server.is_up,
        is_ejected=server.is_ejected,
        is_silent=server.is_silent,
        is_draining=server.is_draining,
        pool=server.pool,
        labels=dict(server.labels),
        budget_bytes=server.budget_bytes if server.budget_bytes < NO_BUDGET else None,
        held_bytes=server.held_bytes,
        replicas=[_replica(replica, now_s) for _, replica in sorted(server.replicas.items())],
    )


def _replica(replica: Replica, now_s: float) -> ReplicaView:
    return ReplicaView(
        model=replica.model,
        state=replica.state,
        bytes=replica.bytes,
        in_flight=replica.in_flight,
        sequences=replica.sequences,
        idle_s=None if replica.last_used_s == NEVER_S else now_s - replica.last_used_s,
        ready_in_s=max(0.0, replica.ready_s - now_s) if replica.state is ModelState.LOADING else None,
    )


def _model(facts: ModelFacts, fleet: FleetService, now_s: float) -> FleetModelView:
    tiers = fleet.tiers
    return FleetModelView(
        name=facts.name,
        tier=fleet.state.fleet.nearest_tier(facts),
        servers=sorted(server.name for server, _ in fleet.state.fleet.replicas(facts.name)),
        resident_bytes=facts.resident_bytes,
        load_s=facts.load_s,
        fetch_s=(fetch_s := fleet.state.specs.fetch_s(facts.name) if tiers is None else tiers.expected_fetch_s(facts.name)),
        fetch_bytes=(None if fetch_s else 0) if tiers is None else tiers.bytes_to_fetch(facts.name),
        uses_per_s=facts.uses_per_s(now_s),
        min_replicas=facts.spec.min_replicas,
        max_replicas=facts.spec.max_replicas,
        quarantined_for_s=max(0.0, facts.quarantined_until_s - now_s),
        why_quarantined=fleet.state.measurements.why_quarantined(facts.name) or "",
        is_suspended=fleet.state.specs.is_suspended(facts.name),
    )


def _event(event: FleetEvent) -> FleetEventView:
    return FleetEventView(
        at_s=event.at_s, kind=event.kind, model=event.model, server=event.server, reason=event.reason, seconds=event.seconds
    )
