"""Callers of asynchronous jobs over HTTP, and the frontend that serves them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from control_plane.frontends.jobs.http import JobsHttp
from control_plane.jobs.ports import Bounds
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.header_forwarding import HeaderForwarding
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.fakes.jobs import ROOMY
from tests.unit.jobs.world import World, world
from tests.wire.gateway import INFER, Answer, Gateway, gateway

MINE, OTHERS, NOT_FOR_M = 1, 2, 3


class Caller:
    """Somebody with a key, who asks one thing at a time."""

    def __init__(self, gateway: Gateway, key: int) -> None:
        self._gateway, self._key = gateway, key

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key_text(self._key)}\r\n{fields}"
        return await (await self._gateway.connect()).ask(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def submit(self, **headers: str) -> Any:
        accepted = await self.ask("POST", "/v2/models/m/jobs", INFER, **headers)
        assert accepted.status == 202, accepted.body
        return orjson.loads(accepted.body)


FORWARDING = HeaderForwarding.of("^x-model-|^traceparent$")


@asynccontextmanager
async def serving(folder: Path, *, bounds: Bounds = ROOMY) -> AsyncIterator[tuple[World, Caller, Caller, Caller]]:
    keys = (api_key(MINE, "infer:m"), api_key(OTHERS, "infer:*", tenant="others"), api_key(NOT_FOR_M, "infer:other"))
    routes = (Route("r", "m", tenants=("others",)),)
    governed = governance(known_state(keys=keys, tenants=(Tenant("team"), Tenant("others")), routes=routes), authentication=True)
    async with world(folder) as here, gateway(governed=governed, jobs=JobsHttp(here.jobs(bounds=bounds), forwarding=FORWARDING)) as it:
        yield here, Caller(it, MINE), Caller(it, OTHERS), Caller(it, NOT_FOR_M)
