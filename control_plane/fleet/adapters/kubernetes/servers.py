"""The pods of a Kubernetes Service as a fleet's list of servers; it implements `fleet/ports.ServerList`.

`run` follows the Service's EndpointSlices; `read` and `has_changed` only look at what it has found. Nothing of this
is on the path of a request: without the API server the gateway goes on with the servers it knows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from control_plane.core.endpoints import ListedServer
from control_plane.core.errors import StartupError
from control_plane.fleet.domain.endpoint_slices import Endpoints, UnusableSlices, endpoints
from control_plane.storage.kubernetes import KubernetesApi, api_url, place_of
from control_plane.storage.kubernetes_watch import Reflector

_SETTING = "--triton-service"


class KubernetesServers:
    """Server list of one Service."""

    def __init__(self, api: KubernetesApi, *, namespace: str, service: str, jitter: random.Random | None = None) -> None:
        self.name = f"{_SETTING} {namespace}/{service}"
        self._api = api
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._slices = Reflector(api, path, f"kubernetes.io/service-name={service}", name=self.name, what="servers", jitter=jitter)
        self._slices.on_change = self._take
        self._found = Endpoints({}, frozenset())
        self._fault: str | None = None
        """What is wrong with the slices as they are now."""
        self._changes = self._read_changes = 0

    def read(self) -> Sequence[ListedServer]:
        """Return the servers known now; none before the first answer of the API server.

        Raises StartupError: what the Service lacks, so that the servers stay as they are.
        """
        self._read_changes = self._changes
        if self._fault is not None:
            raise StartupError(f"{self.name}: {self._fault}")
        return list(self._found.servers.values())

    def has_changed(self) -> bool:
        """See `fleet/ports.ServerList.has_changed`."""
        return self._changes != self._read_changes

    async def run(self) -> None:
        """Follow the Service until cancelled, through any outage of the API server."""
        try:
            await self._slices.run()
        finally:
            await self._api.close()

    def _take(self) -> None:
        """Take over the slices as they are now."""
        before = (self._found, self._fault)
        try:
            found = endpoints(self._slices.objects.values(), self._found.servers)
        except UnusableSlices as exc:
            self._fault = str(exc)
        else:
            self._fault = self._why_nobody(found)
            if self._fault is None:
                self._found = found
        if (self._found, self._fault) != before:
            self._changes += 1

    def _why_nobody(self, found: Endpoints) -> str | None:
        """Why the servers had better stay as they are: all have vanished, and none was seen to end.

        A Service that was deleted, or whose selector was changed, must not empty the fleet.
        """
        if found.servers or found.ending or not self._found.servers:
            return None
        return "it has no endpoints any more; is the Service there, and does its selector match the pods?"


def make_kubernetes_servers(service: str, api_address: str, account: Path) -> KubernetesServers:
    """Return the list of a Service, `NAME` (in this pod's namespace) or `NAMESPACE/NAME`, of this pod's cluster.

    Raises StartupError: this is no pod, or one without a token.
    """
    api = KubernetesApi(api_url(api_address, _SETTING), account)
    namespace, name = place_of(service, account, _SETTING)
    return KubernetesServers(api, namespace=namespace, service=name)
