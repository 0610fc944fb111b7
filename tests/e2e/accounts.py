"""Tenants and keys for tests that start gateways, and an administrator who speaks to their admin API."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from control_plane.app.stores import open_state_store
from control_plane.auth.keys import Keys
from control_plane.core.scope import Right, Scope, parse_scope
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.objects import Objects
from tests.e2e.tidegate import LONG_S, Tidegate

OPERATORS = "operators"
_TIMEOUT_S = LONG_S


def make_first_key(state_dir: Path, state_url: str | None = None) -> str:
    """An administrator's, straight in the store: nobody can be asked for it over the admin API yet."""

    async def make() -> str:
        store = await open_state_store(SecretStr(state_url) if state_url else None, state_dir)
        try:
            await Objects(store).put(Tenant(OPERATORS))
            _, text = await Keys(store).create(OPERATORS, [Scope(Right.ADMIN)])
            return text
        finally:
            await store.close()

    state_dir.mkdir(parents=True, exist_ok=True)
    return asyncio.run(make())


def id_of(key: str) -> str:
    """Return the id that is in a key's text."""
    return key.split("_")[1]


class Administrator:
    """Whoever has that first key, at one gateway."""

    def __init__(self, gateway: Tidegate, key: str) -> None:
        self._port = gateway.port("admin")
        self.key = key

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """The status, and the answer's JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_S)
        try:
            headers = {"x-api-key": self.key, "content-type": "application/json"}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or "null")
        finally:
            connection.close()

    def do(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer of a call that must succeed."""
        status, answer = self.call(method, path, body)
        assert 200 <= status < 300, (method, path, status, answer)
        return answer

    def make_tenant(self, name: str, **limits: Any) -> None:
        self.do("PUT", f"/tenants/{name}", limits)

    def make_key(self, tenant: str, *scopes: str) -> str:
        text: str = self.do("POST", "/keys", {"tenant": tenant, "scopes": scopes})["text"]
        return text

    def revoke(self, key: str) -> None:
        self.do("DELETE", f"/keys/{id_of(key)}")

    def usage(self) -> dict[str, dict[str, Any]]:
        """All that was ever used, by tenant."""
        return {row["tenant"]: row for row in self.do("GET", "/usage?by=tenant&since=30d")["rows"]}


LIMIT = 50.0

TEAM = Tenant("team", requests_per_s=LIMIT)


def make_key(state_url: str | None, state_dir: Path, tenant: Tenant = TEAM, *, scope: str = "infer:echo") -> str:
    """The text of a key of a tenant with a limit."""

    async def main() -> str:
        store = await open_state_store(SecretStr(state_url) if state_url else None, state_dir)
        try:
            await Objects(store).put(tenant)
            _, text = await Keys(store).create(tenant.name, [parse_scope(scope)])
        finally:
            await store.close()
        return text

    return asyncio.run(main())
