"""`fleet/ports.LeaseStore` in a Lease of Kubernetes (`coordination.k8s.io/v1`), changed only where its resourceVersion is
the one that was read (optimistic concurrency).

No time of the Lease is ever compared with a clock of ours, as in client-go's leader election: `fleet/domain/leadership/election`
waits until it has seen the record unchanged for long enough by its own clock. What the election compares is the
fencing token (`leaseTransitions`), the holder and a count of renewals, which is an annotation: times of two renewals may
be equal, and other people's changes of labels must not pass for renewals. `acquireTime` and `renewTime` are there for
those who read the Lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

from control_plane.core.errors import StoreUnavailable
from control_plane.fleet.domain.leadership.lease import Lease, next_token
from control_plane.storage.kubernetes import ApiUnavailable, ChangedMeanwhile, Gone, KubernetesApi, api_url, place_of

_TIMEOUT_S = 1.5
"""Longest wait for a call: several fit into the time for which a lease lasts without a renewal."""

_KEEP_S = 5.0
"""An idle connection is kept beyond the next renewal, or each would begin with a TLS handshake."""

_ATTEMPTS = 4
"""Writes of one change, each onto the record as it is by then; only a defect loses so often to others."""

_RENEWALS = "tidegate.io/renewals"
_RELEASED_BY = "tidegate.io/released-by"
"""Annotations: how often the holder has renewed, and who held the Lease that nobody holds now."""

_SETTING = "--kubernetes-lease"

T = TypeVar("T")


class KubernetesLease:
    """Lease store in one Lease object, which is created when it is first taken."""

    def __init__(self, api: KubernetesApi, *, namespace: str, name: str, wall_s: Callable[[], float] = time.time) -> None:
        self._api = api
        self._wall_s = wall_s
        self._namespace, self._name = namespace, name
        self._where = f"the Lease {namespace}/{name}"
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._known: Mapping[str, Any] | None = None
        """The object as last seen: a renewal is based on it without reading it first."""
        self._token = 0
        """The highest token seen: tokens go on growing even if somebody has deleted the Lease."""

    async def read(self) -> Lease | None:
        return await self._calling(self._read())

    async def acquire(self, seen: Lease | None, *, holder: str, ttl_s: float) -> Lease | None:
        """See `fleet/ports.LeaseStore.acquire`. A Lease lasts for whole seconds, so `ttl_s` is rounded up."""
        return await self._calling(self._acquire(seen, holder, ceil(ttl_s)))

    async def renew(self, lease: Lease) -> Lease | None:
        return await self._calling(self._change(lease, lambda now: replace(now, beat=now.beat + 1)))

    async def resume(self, lease: Lease) -> Lease | None:
        """None: the API server does not tell whether its store was restored from a backup since, which may have lost that
        another process took the lease."""

    async def release(self, lease: Lease) -> None:
        released = self._change(lease, lambda now: replace(now, beat=now.beat + 1, is_released=True))
        # The process stops, in whose cancelled task Python 3.11's asyncio.timeout passes for a cancellation.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._telling(released), _TIMEOUT_S)

    async def close(self) -> None:
        await self._api.close()

    async def _read(self) -> Lease | None:
        self._known = await self._api.get(self._path)
        if self._known is None:
            return None
        lease = _lease(self._known)
        if lease is None:
            raise ApiUnavailable("it is another program's, which takes its renewals elsewhere; choose another name")
        self._token = max(self._token, lease.token)
        return lease

    async def _acquire(self, seen: Lease | None, holder: str, ttl_s: int) -> Lease | None:
        found = await self._read()
        if found != seen:
            return None
        mine = Lease(next_token(max(self._token, seen.token if seen else 0), self._wall_s()), holder, ttl_s)
        return mine if await self._write(mine) else None

    async def _change(self, lease: Lease, change: Callable[[Lease], Lease]) -> Lease | None:
        """Change the Lease while it is this holder's; None where it is not. What others have changed in the object stays."""
        now = await self._read() if self._known is None else _lease(self._known)
        for _ in range(_ATTEMPTS):
            if now is None or (now.token, now.holder, now.is_released) != (lease.token, lease.holder, False):
                return None
            changed = change(now)
            if await self._write(changed):
                return changed
            now = await self._read()
        raise ApiUnavailable("others change it without an end")

    async def _write(self, lease: Lease) -> bool:
        """Write the Lease onto the object as it is known; False where it is another one by now."""
        before = self._known
        try:
            if before is None:
                metadata = {"name": self._name, "namespace": self._namespace}
                self._known = await self._api.create(self._collection, _object({"metadata": metadata}, lease))
            else:
                self._known = await self._api.replace(self._path, _object(before, lease))
        except ChangedMeanwhile:
            self._known = None
            return False
        except BaseException:
            # It may have been written all the same.
            self._known = None
            raise
        self._token = max(self._token, lease.token)
        return True

    async def _calling(self, call: Awaitable[T]) -> T:
        """Await a call, with its deadline. Raises StoreUnavailable."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._telling(call)
        except TimeoutError:
            raise StoreUnavailable(f"{self._where}: the Kubernetes API server does not answer within {_TIMEOUT_S:g} s") from None

    async def _telling(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except (ApiUnavailable, Gone) as exc:
            raise StoreUnavailable(f"{self._where}: {exc}") from None


def _lease(it: Mapping[str, Any]) -> Lease | None:
    """Read the record; None if it is not one of a gateway's."""
    spec, annotations = it.get("spec") or {}, (it.get("metadata") or {}).get("annotations") or {}
    holder, token, ttl_s = spec.get("holderIdentity") or "", spec.get("leaseTransitions"), spec.get("leaseDurationSeconds")
    renewals, last = str(annotations.get(_RENEWALS, "")), str(annotations.get(_RELEASED_BY, ""))
    if not (isinstance(token, int) and isinstance(ttl_s, int) and renewals.isdecimal() and (holder or last)):
        return None
    return Lease(token, holder or last, ttl_s, beat=int(renewals), is_released=not holder)


def _object(before: Mapping[str, Any], lease: Lease) -> dict[str, Any]:
    """The object that holds a lease, with all else as it was before."""
    metadata, spec = dict(before["metadata"]), dict(before.get("spec") or {})
    annotations = {**(metadata.get("annotations") or {}), _RENEWALS: str(lease.beat)}
    annotations.pop(_RELEASED_BY, None)
    if lease.is_released:
        annotations[_RELEASED_BY] = lease.holder
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    spec |= {
        "holderIdentity": "" if lease.is_released else lease.holder,
        "leaseDurationSeconds": int(lease.ttl_s),
        "leaseTransitions": lease.token,
        "renewTime": now,
    }
    if not lease.beat:
        spec["acquireTime"] = now
    metadata.pop("managedFields", None)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {**metadata, "annotations": annotations},
        "spec": spec,
    }


def make_kubernetes_lease(reference: str, api_address: str, account: Path) -> KubernetesLease:
    """Return the lease store in the Lease `[NAMESPACE/]NAME`, of this pod's cluster.

    Raises StartupError: this is no pod, or one without a token.
    """
    api = KubernetesApi(api_url(api_address, _SETTING), account, keep_s=_KEEP_S)
    namespace, name = place_of(reference, account, _SETTING)
    return KubernetesLease(api, namespace=namespace, name=name)
