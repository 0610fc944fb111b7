"""The pods of a Kubernetes Service as a fleet's list of servers; it implements `fleet/ports.ServerList`.

`run` follows the Service's EndpointSlices; `read` and `has_changed` only look at what it has found. Nothing of this
is on the path of a request: without the API server the gateway goes on with the servers it knows.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from control_plane.core.endpoints import ListedServer
from control_plane.core.errors import StartupError
from control_plane.fleet.domain.endpoint_slices import Endpoints, Slice, UnusableSlices, endpoints
from control_plane.storage.kubernetes import ApiUnavailable, ConnectionLost, Gone, KubernetesApi, api_url, place_of

_log = logging.getLogger(__name__)

_SETTING = "--triton-service"

_RETRY_S, _MAX_RETRY_S = 0.5, 5.0
"""Time before the next try after an error, doubled each time. The whole fleet's gateways come back at once, so it is
drawn from half of it to all of it."""


class KubernetesServers:
    """Server list of one Service."""

    def __init__(self, api: KubernetesApi, *, namespace: str, service: str, jitter: random.Random | None = None) -> None:
        self.name = f"{_SETTING} {namespace}/{service}"
        self._api = api
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._selector = f"kubernetes.io/service-name={service}"
        self._jitter = jitter or random.Random()  # noqa: S311 - it spreads retries
        self._slices: dict[str, Slice] = {}
        self._found = Endpoints({}, frozenset())
        self._fault: str | None = None
        """What is wrong with the slices as they are now."""
        self._changes = self._read_changes = 0
        self._told = ""

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
        delay_s = _RETRY_S
        try:
            while True:
                try:
                    await self._follow()
                    delay_s = _RETRY_S
                except Gone:
                    delay_s = _RETRY_S
                except ApiUnavailable as exc:
                    self._tell(f"the Kubernetes API server does not say which servers there are, they stay as they are: {exc}")
                await asyncio.sleep(delay_s * self._jitter.uniform(0.5, 1.0))
                delay_s = min(2 * delay_s, _MAX_RETRY_S)
        finally:
            await self._api.close()

    async def _follow(self) -> None:
        """List, and then watch, one watch after the other, until a connection is lost: then all is listed again."""
        version = await self._list()
        with suppress(ConnectionLost):  # the list that follows says whether the server is away
            while True:
                version = await self._watch(version)
                self._tell("")

    async def _list(self) -> str:
        """Read all slices, and return the version to watch from."""
        items, version = await self._api.list_all(self._path, self._selector)
        self._take({_name(each): each for each in items})
        return version

    async def _watch(self, version: str) -> str:
        """Follow the changes since `version` until the server ends the watch, and return the version then."""
        async with aclosing(self._api.watch(self._path, self._selector, version)) as changes:
            async for kind, it in changes:
                version = str((it.get("metadata") or {}).get("resourceVersion", version))
                if kind in ("ADDED", "MODIFIED"):
                    self._take({**self._slices, _name(it): it})
                elif kind == "DELETED":
                    self._take({name: each for name, each in self._slices.items() if name != _name(it)})
        return version

    def _take(self, slices: Mapping[str, Slice]) -> None:
        """Take over the slices as they are now."""
        self._slices = dict(slices)
        before = (self._found, self._fault)
        try:
            found = endpoints(self._slices.values(), self._found.servers)
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

    def _tell(self, fault: str) -> None:
        """Log an error that comes again with each try, once; and its end."""
        if fault and fault != self._told:
            _log.warning("%s: %s", self.name, fault)
        elif self._told and not fault:
            _log.info("%s: the Kubernetes API server answers again", self.name)
        self._told = fault


def _name(it: Mapping[str, Any]) -> str:
    return str((it.get("metadata") or {}).get("name", ""))


def make_kubernetes_servers(service: str, environment: Mapping[str, str], account: Path) -> KubernetesServers:
    """Return the list of a Service, `NAME` (in this pod's namespace) or `NAMESPACE/NAME`, of this pod's cluster.

    Raises StartupError: this is no pod, or one without a token.
    """
    api = KubernetesApi(api_url(environment, _SETTING), account)
    namespace, name = place_of(service, account, _SETTING)
    return KubernetesServers(api, namespace=namespace, service=name)
