"""`operator/ports.ModelResources` in the Kubernetes API: list, watch, and the status subresource."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from control_plane.core.errors import InvalidRequest, StoreUnavailable
from control_plane.operator.domain.resource import GROUP, KIND, PLURAL, VERSION
from control_plane.storage.kubernetes import ApiUnavailable, ChangedMeanwhile, Gone, KubernetesApi, Rejected, api_url, place_of
from control_plane.storage.kubernetes_watch import Reflector

SETTING = "--model-resources"

_TIMEOUT_S = 5.0
"""Longest wait for a write of a status: the next look at everything writes it."""

_KEEP_S = 5.0


class KubernetesModels:
    """Model resources of one namespace, at the API server."""

    def __init__(self, api: KubernetesApi, *, namespace: str) -> None:
        self._api = api
        self._path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}"
        self._reflector = Reflector(api, self._path, name=f"{SETTING} in {namespace}", what="Models")

    def listed(self) -> list[Mapping[str, Any]] | None:
        return list(self._reflector.objects.values()) if self._reflector.has_listed else None

    def follow(self, on_change: Callable[[], None]) -> None:
        self._reflector.on_change = on_change

    async def put_status(self, it: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
        metadata = {key: it["metadata"][key] for key in ("name", "namespace", "resourceVersion") if key in it["metadata"]}
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, "spec": it.get("spec") or {}, "status": status}
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._api.replace(f"{self._path}/{metadata['name']}/status", body)
        except ChangedMeanwhile:
            return False
        except TimeoutError:
            raise StoreUnavailable(f"the Kubernetes API server does not answer within {_TIMEOUT_S:g} s") from None
        except Rejected as exc:
            raise InvalidRequest(str(exc)) from None
        except (ApiUnavailable, Gone) as exc:
            raise StoreUnavailable(f"the status of Model {metadata['name']} cannot be written: {exc}") from None
        return True

    async def run(self) -> None:
        try:
            await self._reflector.run()
        finally:
            await self._api.close()


def make_kubernetes_models(api_address: str, account: Path) -> KubernetesModels:
    """Return the Model resources of this pod's namespace. Raises StartupError: this is no pod, or one without a token."""
    api = KubernetesApi(api_url(api_address, SETTING), account, keep_s=_KEEP_S)
    namespace, _ = place_of("", account, SETTING)
    return KubernetesModels(api, namespace=namespace)
