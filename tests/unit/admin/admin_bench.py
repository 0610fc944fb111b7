"""The admin API over fakes: models a and b, of which a is loaded, and a tenant with keys of every kind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx

from control_plane.admin.api import make_admin_api
from control_plane.admin.events.feed import EventFeed
from control_plane.admin.events.logs import LogReaders
from control_plane.admin.events.subscriptions import Subscriptions
from control_plane.admin.services import AdminServices
from control_plane.audit.domain.entry import Actor
from control_plane.audit.trail import AuditTrail
from control_plane.auth.access import Access
from control_plane.auth.authentication import Authentication
from control_plane.auth.domain.auth_backoff import AuthBackoff
from control_plane.auth.keys import Keys
from control_plane.cache.purges import Purges
from control_plane.core.model import ModelState
from control_plane.core.scope import EVERYTHING, Right, Scope
from control_plane.events.domain.stream import Stream
from control_plane.events.logs import AuditEntries, UsageRecords
from control_plane.events.ports import NumberedLog
from control_plane.jobs.webhooks.secrets import WebhookSecrets
from control_plane.metering.reports import UsageService
from control_plane.models.model_service import ModelService
from control_plane.objects.audited_store import AuditedStore
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.mirror import ObjectMirror
from control_plane.objects.objects import Objects
from control_plane.rollout.contracts import ContractReader
from control_plane.rollout.rollouts import Rollouts
from control_plane.triton.servers import Servers
from tests.aio import changing, run
from tests.fakes import FakeRepository, FakeUpstream
from tests.fakes.stores.audit_log import FakeAuditLog
from tests.fakes.stores.idempotency_records import FakeIdempotencyRecords
from tests.fakes.stores.state_store import FakeState, FakeStateStore
from tests.fakes.stores.usage_store import FakeUsage, FakeUsageStore

OWN = "http://127.0.0.1:8080"


@dataclass
class Clock:
    now_s: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Bench:
    """The admin API on fakes, with a client for it; with `authentication` callers must show a key."""

    authentication: bool = False
    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    servers: Servers = field(default_factory=Servers)
    store: FakeStateStore = field(default_factory=FakeStateStore)
    audit: FakeAuditLog = field(default_factory=FakeAuditLog)
    usage: FakeUsageStore = field(default_factory=FakeUsageStore)
    records: FakeIdempotencyRecords = field(default_factory=FakeIdempotencyRecords)
    clock: Clock = field(default_factory=Clock)
    console: bool = True
    degraded: list[str] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop | None = None
    """The loop that serves it, where it is on a real port."""

    def __post_init__(self) -> None:
        self.upstream.control.states["a"] = ModelState.READY
        self.servers.up(self.upstream)
        repository = FakeRepository(models=["a", "b"])
        self.models = ModelService(servers=self.servers, repository=repository, load=[], load_timeout_s=10)
        self.known = ObjectMirror(self.store, now_s=self.clock)
        self.trail = AuditTrail(self.audit)
        self.events = EventFeed(today_s=self.clock)
        logs: dict[Stream, NumberedLog] = {Stream.USAGE: UsageRecords(self.usage, "/s"), Stream.AUDIT: AuditEntries(self.audit, "/s")}
        self.subscriptions = Subscriptions(logs, LogReaders("0a0a0a0a"), "/g")
        state = AuditedStore(self.store, self.trail, Actor("test"))
        self.keys = Keys(state, now_s=self.clock)
        authentication = Authentication(self.known, None, attempts=AuthBackoff(), now_s=self.clock, monotonic_s=self.clock)
        self.access = Access(self.known, authentication if self.authentication else None)
        objects = Objects(state, now_s=self.clock)
        self.rollouts = Rollouts(objects, self.known, ContractReader(self._reading), now_s=self.clock, wait_s=0.0)
        services = AdminServices(
            models=self.models,
            servers=self.servers,
            access=self.access,
            keys=self.keys,
            webhook_secrets=WebhookSecrets(state, now_s=self.clock),
            objects=objects,
            purges=Purges(objects, self.known, wait_s=0.0),
            usage=UsageService(self.usage, lambda: self.known.prices.values()),
            trail=self.trail,
            known=self.known,
            degraded=lambda: self.degraded,
            rollouts=self.rollouts,
            events=self.events,
            subscriptions=self.subscriptions,
            records=self.records,
        )
        self.app = make_admin_api(services, version="1.2.3", console=self.console)

    async def _reading(self, model: str) -> FakeUpstream:
        return self.upstream

    def ask(self, method: str, path: str, *, body: object = None, **headers: str) -> tuple[int, Any]:
        response = self.response(method, path, body=body, **headers)
        return response.status_code, response.json() if response.content else None

    def response(self, method: str, path: str, *, body: object = None, **headers: str) -> httpx.Response:
        """Make a call; `body` is sent as JSON, bytes as they are; `if_match` is the header `if-match`."""
        return run(self.request(method, path, body=body, **headers))

    async def request(self, method: str, path: str, *, body: object = None, **headers: str) -> httpx.Response:
        content: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        async with (
            changing(self.models),
            httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=OWN) as client,
        ):
            return await client.request(method, path, headers=fields, **content)

    def publish(self, kind: str, **fields: object) -> None:
        """Publish an event, from any thread."""
        if self.loop is None:
            self.events.publish(kind, fields)
        else:
            self.loop.call_soon_threadsafe(self.events.publish, kind, fields)

    def forget(self) -> None:
        """Empty the stores and make them reachable again, for the next test."""
        self.store.state, self.usage.usage = FakeState(), FakeUsage()
        self.audit.entries.clear()
        self.audit.kept = None
        self.store.is_away = self.usage.is_away = self.audit.is_away = False

    def put_tenant(self) -> None:
        run(self.store.put(Kind.TENANT, "acme", to_body(Tenant("acme"))))

    def make_key(self, *scopes: Scope, expires_s: float | None = None, is_revoked: bool = False) -> str:
        """Make a key that the API knows; return its text."""
        self.put_tenant()
        key, text = run(self.keys.create("acme", scopes or EVERYTHING.scopes, expires_s=expires_s))
        if is_revoked:
            run(self.keys.revoke(key.id))
        run(self.known.start())
        return text


def scope_of(right: Right) -> Scope:
    return Scope(right, "*" if right is Right.INFER else "")
