"""What a gateway that is a pod keeps in the Kubernetes API, wired: the list of its servers, its fleet's lease, and the
resources that declare models."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from pydantic import SecretStr

from control_plane.admin.declared.service import Declared
from control_plane.audit.domain.entry import Actor
from control_plane.audit.trail import AuditTrail
from control_plane.core.errors import StartupError
from control_plane.fleet.adapters.kubernetes.lease import make_kubernetes_lease
from control_plane.fleet.adapters.kubernetes.servers import KubernetesServers, make_kubernetes_servers
from control_plane.fleet.adapters.local_lease import LocalLease
from control_plane.fleet.fleet_service import FleetService
from control_plane.fleet.ports import LeaseStore
from control_plane.objects.objects import Objects
from control_plane.operator.adapters.kubernetes import SETTING, make_kubernetes_models
from control_plane.operator.controller import OWNER, ModelController
from control_plane.settings import FleetSettings


def make_pods(fleet: FleetSettings) -> KubernetesServers:
    """Return the list of the pods of `--triton-service`. Raises StartupError: this is no pod."""
    return make_kubernetes_servers(fleet.triton_service, fleet.kubernetes_api, fleet.service_account_dir)


def make_lease(fleet: FleetSettings, shared: SecretStr | None, fleet_name: str) -> LeaseStore:
    """Return the store of the fleet's lease; `shared` is the Redis of gateways that share the fleet, None where this one
    has it to itself. Raises StartupError."""
    if not fleet.kubernetes_lease:
        if shared is None:
            return LocalLease()
        from control_plane.fleet.adapters.redis_lease import make_redis_lease  # here: as in `stores`

        return make_redis_lease(shared, fleet=fleet_name)
    if shared is None:
        raise StartupError(
            "--kubernetes-lease is for gateways that share a fleet of attached Tritons: give --state-url, too, by which "
            "they know what the others need"
        )
    return make_kubernetes_lease(fleet.kubernetes_lease, fleet.kubernetes_api, fleet.service_account_dir)


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
