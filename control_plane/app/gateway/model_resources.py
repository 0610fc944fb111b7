"""Wires the Kubernetes operator for Model resources; imported only by gateways that run it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from control_plane.admin.declared.service import Declared
from control_plane.audit.domain.entry import Actor
from control_plane.audit.trail import AuditTrail
from control_plane.core.errors import StartupError
from control_plane.fleet.fleet_service import FleetService
from control_plane.objects.objects import Objects
from control_plane.operator.adapters.kubernetes import SETTING, make_kubernetes_models
from control_plane.operator.controller import OWNER, ModelController
from control_plane.settings import FleetSettings


def make_model_controller(
    settings: FleetSettings, objects: Objects, fleet: FleetService | None, trail: AuditTrail, *, is_open: Callable[[], bool]
) -> ModelController:
    """Return the controller of `--model-resources`, which acts once the gateway is open: before that it does not know
    what models there are. Raises StartupError: this is no pod, or no fleet."""
    if fleet is None:
        raise StartupError(f"{SETTING} is for a fleet: a single Triton loads what --load names")
    resources = make_kubernetes_models(settings.kubernetes_api, settings.service_account_dir)
    actor = Actor(OWNER)
    declared = Declared(objects.by(actor), fleet.models, trail, actor)
    return ModelController(resources, declared, fleet.models, is_leader=lambda: is_open() and fleet.is_leader, now=_now)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
