"""Clients of a Kubernetes API server, and adapters that run in the background of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from control_plane.storage.kubernetes import KubernetesApi, Watching
from tests.contract.kubernetes.api_servers import AnyApi
from tests.kubernetes_api import endpoint_slice

SOON_S = 60.0


@asynccontextmanager
async def running(program: Coroutine[Any, Any, None]) -> AsyncIterator[Callable[[Callable[[], bool]], Coroutine[Any, Any, None]]]:
    """Run an adapter, and give a way to wait until something is so."""
    task = asyncio.get_running_loop().create_task(program)

    async def until(is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON_S):
            while not is_so():
                assert not task.done(), task
                await asyncio.sleep(0.01)

    try:
        yield until
    finally:
        task.cancel()
        await asyncio.wait([task])


def client(api: AnyApi) -> KubernetesApi:
    return KubernetesApi(api.url, api.account, watching=Watching(2, 2.0))


def slice_of(name: str, *endpoints: object) -> dict[str, Any]:
    return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", **endpoint_slice(name, *endpoints)}
