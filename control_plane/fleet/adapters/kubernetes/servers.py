"""The pods of one or several Kubernetes Services as a fleet's list of servers; it implements `fleet/ports.ServerList`.

`run` follows the Services' EndpointSlices; `read` and `has_changed` only look at what it has found. Nothing of this
is on the path of a request: without the API server the gateway goes on with the servers it knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from control_plane.core.endpoints import ListedServer
from control_plane.core.errors import StartupError
from control_plane.fleet.domain.endpoint_slices import Endpoints, UnusableSlices, endpoints
from control_plane.storage.kubernetes import KubernetesApi, api_url, place_of
from control_plane.storage.kubernetes_watch import Reflector

_SETTING = "--triton-service"
_SERVICE_LABEL = "kubernetes.io/service-name"


class KubernetesServers:
    """Server list of the Services of one namespace that `services` names, with commas between."""

    def __init__(self, api: KubernetesApi, *, namespace: str, services: str) -> None:
        self.name = f"{_SETTING} {namespace}/{services}"
        self._api, self._namespace, self._services = api, namespace, tuple(dict.fromkeys(services.split(",")))
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._slices = Reflector(api, path, f"{_SERVICE_LABEL} in ({services})", name=self.name, what="servers")
        self._slices.on_change = self._take
        self._found = dict.fromkeys(self._services, Endpoints({}, frozenset()))
        self._fault: str | None = None
        """What is wrong with the slices as they are now, and of which Service."""
        self._changes = self._read_changes = 0

    def read(self) -> Sequence[ListedServer]:
        """Return the servers known now; none before the first answer of the API server.

        Raises StartupError: what a Service lacks, so that the servers stay as they are.
        """
        self._read_changes = self._changes
        if self._fault is not None:
            raise StartupError(self._fault)
        return [server for found in self._found.values() for server in found.servers.values()]

    def has_changed(self) -> bool:
        """See `fleet/ports.ServerList.has_changed`."""
        return self._changes != self._read_changes

    async def run(self) -> None:
        """Follow the Services until cancelled, through any outage of the API server."""
        try:
            await self._slices.run()
        finally:
            await self._api.close()

    def _take(self) -> None:
        """Take over the slices as they are now."""
        before = (self._found, self._fault)
        try:
            self._found, self._fault = {service: self._read(service) for service in self._services}, None
        except UnusableSlices as exc:
            self._fault = str(exc)
        if (self._found, self._fault) != before:
            self._changes += 1

    def _read(self, service: str) -> Endpoints:
        """Return what one Service's slices say.

        A Service that was deleted, or whose selector was changed, must not take its servers out of the fleet: if all have
        vanished and none was seen to end, they had better stay as they are.

        Raises UnusableSlices, with the Service's name.
        """
        slices = [each for each in self._slices.objects.values() if each["metadata"]["labels"][_SERVICE_LABEL] == service]
        before = self._found[service]
        try:
            found = endpoints(slices, before.servers)
            if before.servers and not (found.servers or found.ending):
                raise UnusableSlices("it has no endpoints any more; is the Service there, and does its selector match the pods?")
        except UnusableSlices as exc:
            raise UnusableSlices(f"{_SETTING} {self._namespace}/{service}: {exc}") from exc
        return found


def make_kubernetes_servers(services: str, api_address: str, account: Path) -> KubernetesServers:
    """Return the list of Services, `NAME[,NAME...]` (in this pod's namespace) or `NAMESPACE/NAME[,NAME...]`, of this pod's
    cluster.

    Raises StartupError: this is no pod, or one without a token.
    """
    api = KubernetesApi(api_url(api_address, _SETTING), account)
    namespace, names = place_of(services, account, _SETTING)
    return KubernetesServers(api, namespace=namespace, services=names)
