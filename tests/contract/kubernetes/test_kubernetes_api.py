"""What the adapters of Kubernetes need of its API server: at the scripted one, and at a real one where there is one.

`test_lease_store` has the lease; `tests/wire/kubernetes` what only a scripted server can be made to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from control_plane.fleet.adapters.kubernetes.servers import KubernetesServers
from control_plane.operator.adapters.kubernetes import KubernetesModels
from tests.contract.kubernetes.api_servers import API_SERVERS, AnyApi, an_api
from tests.contract.kubernetes.kubernetes_api_bench import client, running, slice_of
from tests.kubernetes_api import endpoint, model_resource


@pytest.fixture(params=API_SERVERS)
def api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyApi]:
    with ExitStack() as held:
        yield an_api(request.param, request, held, tmp_path)


async def test_servers_come_and_go_as_slices_say(api: AnyApi) -> None:
    servers = KubernetesServers(client(api), namespace="tidegate", services="triton")
    async with running(servers.run()) as until:
        for it, expected in (
            (slice_of("s1", endpoint("triton-a", "10.0.0.1")), {"triton-a"}),
            (slice_of("s2", endpoint("triton-b", "10.0.0.2")), {"triton-a", "triton-b"}),
            (slice_of("s1", endpoint("triton-a", "10.0.0.1", ready=False, serving=True, terminating=True)), {"triton-b"}),
        ):
            await asyncio.to_thread(api.apply, it)
            await until(lambda expected=expected: {each.name for each in servers.read()} == expected)  # type: ignore[misc]


async def test_of_models_the_status_is_all_that_is_written(api: AnyApi) -> None:
    models = KubernetesModels(client(api), namespace="tidegate")
    condition = {"type": "Accepted", "status": "True", "reason": "Applied", "message": "", "lastTransitionTime": "2026-11-23T20:00:00Z"}
    async with running(models.run()) as until:
        await asyncio.to_thread(api.apply, model_resource("encoder", min_replicas=2))
        await until(lambda: [each["metadata"]["name"] for each in models.listed() or ()] == ["encoder"])
        (found,) = models.listed() or ()
        assert await models.put_status(found, {"conditions": [condition]})
        assert not await models.put_status(found, {"conditions": []}), "it is another one by now"
    held = await asyncio.to_thread(api.get, "Model", "encoder")
    assert held is not None
    assert (held["spec"], held["status"]["conditions"]) == ({"min_replicas": 2}, [condition])
    assert held["metadata"]["generation"] == found["metadata"]["generation"], "a status is no change of what is wanted"
