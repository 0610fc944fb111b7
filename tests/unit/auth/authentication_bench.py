"""`Authentication` over a fake store, with tokens that a test says are valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from control_plane.auth.authentication import Authentication
from control_plane.auth.domain.auth_backoff import AuthBackoff
from control_plane.auth.keys import Keys
from control_plane.core.errors import ControlPlaneError, Unauthenticated
from control_plane.core.principal import Credentials, Principal
from control_plane.core.scope import Right, Scope, Scopes
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.mirror import ObjectMirror
from tests.fakes.stores.state_store import FakeStateStore

SCOPES = (Scope(Right.INFER, "text_*"),)
TOKEN = "eyJhbGciOiJFUzI1NiJ9.e30.c2lnbmF0dXJl"
HERE, THERE = "192.0.2.1", "192.0.2.2"


@dataclass
class FakeTokens:
    """Fake `auth/ports.TokenVerifier` that knows one token."""

    tenant: str = "acme"
    valid: str = TOKEN
    asked: int = 0
    signatures: int = 0

    def verify(self, token: str, *, before_signature: Callable[[], None]) -> Principal:
        self.asked += 1
        before_signature()
        self.signatures += 1
        if token != self.valid:
            raise Unauthenticated("the token is not valid")
        return Principal(self.tenant, "somebody", Scopes(SCOPES))

    async def run(self) -> None:
        """It has no keys to keep."""


@dataclass
class Bench:
    store: FakeStateStore = field(default_factory=FakeStateStore)
    now_s: float = 1000.0
    monotonic_s: float = 50.0
    tokens: FakeTokens = field(default_factory=FakeTokens)

    def __post_init__(self) -> None:
        self.known = ObjectMirror(self.store, now_s=lambda: self.now_s)
        self.keys = Keys(self.store, now_s=lambda: self.now_s)
        self.authentication = self.make(self.tokens)

    def make(self, tokens: FakeTokens | None) -> Authentication:
        return Authentication(self.known, tokens, attempts=AuthBackoff(), now_s=lambda: self.now_s, monotonic_s=lambda: self.monotonic_s)

    async def start(self) -> tuple[ApiKey, str]:
        await self.store.put(Kind.TENANT, "acme", to_body(Tenant("acme")))
        made = await self.keys.create("acme", SCOPES, expires_s=5000.0)
        await self.known.start()
        return made

    def bearer(self, text: str, source: str = HERE) -> Principal:
        return self.authentication.authenticate(Credentials(f"Bearer {text}", None, source))

    def refusal(self, text: str, source: str = HERE) -> ControlPlaneError:
        with pytest.raises(ControlPlaneError) as raised:
            self.bearer(text, source)
        return raised.value

    def fail(self, times: int, source: str = HERE) -> None:
        for _ in range(times):
            assert isinstance(self.refusal("tg_wrong", source), Unauthenticated)
