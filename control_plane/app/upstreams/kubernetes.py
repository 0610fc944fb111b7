"""Wires the Kubernetes API for a gateway that runs in a pod: the list of its servers, and its fleet's lease."""

from __future__ import annotations

from pydantic import SecretStr

from control_plane.core.errors import StartupError
from control_plane.fleet.adapters.kubernetes.lease import make_kubernetes_lease
from control_plane.fleet.adapters.kubernetes.servers import KubernetesServers, make_kubernetes_servers
from control_plane.fleet.adapters.local_lease import LocalLease
from control_plane.fleet.ports import LeaseStore
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
