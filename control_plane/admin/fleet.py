"""The fleet over the admin API: servers, what is on them, what is known of models, and what has happened lately."""

from __future__ import annotations

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from control_plane.admin.errors import error_responses
from control_plane.core.errors import ErrorCode, RouteNotFound
from control_plane.core.model import ModelState
from control_plane.fleet.domain.event import FleetEvent, FleetEventKind
from control_plane.fleet.domain.fleet import NEVER_S, Copy, ModelFacts, Server
from control_plane.fleet.fleet_service import FleetService
from control_plane.fleet.view.state import NO_BUDGET
from control_plane.models.domain.description import Tier

_NO_FLEET = (
    "this serves one Triton, and what was loaded stays there: `tidegate models list` shows it; "
    "--servers, --memory-budget, --servers-file or several --triton-url make a fleet"
)


class _View(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class CopyView(_View):
    """A model on a server."""

    model: str
    state: ModelState
    bytes: int
    """That count for it; 0 of an ensemble's step, which counts with the ensemble, and of one whose load has not begun."""
    in_flight: int
    sequences: int
    """Under way: it stays until they have ended."""
    idle_s: float | None
    """Since a request last came for it; null: none has."""
    ready_in_s: float | None
    """Of one that loads: when it is expected to be ready."""


class ServerView(_View):
    """One Triton."""

    name: str
    is_up: bool
    is_ejected: bool
    """It answers too slowly or with errors, and gets no requests but probes."""
    is_leaving: bool
    """It gets nothing new, and goes when what is there has ended."""
    pool: str
    """Of workloads that it is for; empty: of all."""
    labels: dict[str, str]
    budget_bytes: int | None
    """For models; null: no bound."""
    held_bytes: int
    """What is loaded, loads or is not surely gone."""
    copies: list[CopyView]


class FleetModelView(_View):
    """What is known of a model besides where it is."""

    name: str
    tier: Tier
    """The nearest place where it is."""
    servers: list[str]
    resident_bytes: int
    load_s: float
    """That a load is expected to take, with its fetch."""
    fetch_s: float
    """Of these, for the fetch; 0 of a model that is on this machine."""
    fetch_bytes: int | None
    """To be fetched; null: nobody has looked yet."""
    uses_per_s: float
    """At which it is expected to be asked for."""
    min_copies: int
    max_copies: int | None
    quarantined_for_s: float
    """It failed to load and is not tried again before; 0: it is not."""
    why_quarantined: str
    is_withdrawn: bool
    """An administrator has unloaded it: it is loaded for nobody."""


class FleetEventView(_View):
    at_s: float
    kind: FleetEventKind
    model: str
    """Empty of what has happened to a server."""
    server: str
    reason: str
    seconds: float


class FleetView(_View):
    is_owner: bool
    """Whether this process loads and unloads; else another one does, and events and what is expected are told there."""
    servers: list[ServerView]
    models: list[FleetModelView]
    events: list[FleetEventView]
    """Newest last."""


def add_fleet_path(app: FastAPI, fleet: FleetService | None) -> None:
    """`/fleet`."""

    @app.get("/fleet", tags=["fleet"], responses=error_responses(ErrorCode.ROUTE_NOT_FOUND))
    async def show() -> FleetView:
        """Servers, models by tier with their copies, and what has happened to either lately."""
        if fleet is None:
            raise RouteNotFound(_NO_FLEET)
        state, now_s = fleet.state, fleet.state.now_s()
        return FleetView(
            is_owner=fleet.is_owner,
            servers=[_server(server, now_s) for server in state.fleet.servers.values()],
            models=[_model(facts, fleet, now_s) for _, facts in sorted(state.fleet.models.items())],
            events=[_event(event) for event in fleet.state.events.latest],
        )


def _server(server: Server, now_s: float) -> ServerView:
    return ServerView(
        name=server.name,
        is_up=server.is_up,
        is_ejected=server.is_ejected,
        is_leaving=server.is_leaving,
        pool=server.pool,
        labels=dict(server.labels),
        budget_bytes=server.budget_bytes if server.budget_bytes < NO_BUDGET else None,
        held_bytes=server.held_bytes,
        copies=[_copy(copy, now_s) for _, copy in sorted(server.copies.items())],
    )


def _copy(copy: Copy, now_s: float) -> CopyView:
    return CopyView(
        model=copy.model,
        state=copy.state,
        bytes=copy.bytes,
        in_flight=copy.in_flight,
        sequences=copy.sequences,
        idle_s=None if copy.last_used_s == NEVER_S else now_s - copy.last_used_s,
        ready_in_s=max(0.0, copy.ready_s - now_s) if copy.state is ModelState.LOADING else None,
    )


def _model(facts: ModelFacts, fleet: FleetService, now_s: float) -> FleetModelView:
    tiers = fleet.tiers
    return FleetModelView(
        name=facts.name,
        tier=nearest_tier(fleet, facts),
        servers=sorted(fleet.state.fleet.holders.get(facts.name, {})),
        resident_bytes=facts.resident_bytes,
        load_s=facts.load_s,
        fetch_s=0.0 if tiers is None else tiers.expected_fetch_s(facts.name),
        fetch_bytes=0 if tiers is None else tiers.bytes_to_fetch(facts.name),
        uses_per_s=facts.uses_per_s(now_s),
        min_copies=facts.spec.min_copies,
        max_copies=facts.spec.max_copies,
        quarantined_for_s=max(0.0, facts.quarantined_until_s - now_s),
        why_quarantined=fleet.residency.loads.why_quarantined(facts.name) or "",
        is_withdrawn=fleet.state.is_withdrawn(facts.name),
    )


def nearest_tier(fleet: FleetService, facts: ModelFacts) -> Tier:
    """Where it is, as seen from a request."""
    holders = fleet.state.fleet.holders.get(facts.name, {})
    is_hot = any(server.copies[facts.name].state is ModelState.READY for server in holders.values())
    return Tier.HOT if is_hot else facts.tier


def _event(event: FleetEvent) -> FleetEventView:
    return FleetEventView(
        at_s=event.at_s, kind=event.kind, model=event.model, server=event.server, reason=event.reason, seconds=event.seconds
    )
