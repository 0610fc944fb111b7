"""Fake frontend before the verbatim cache and the response cache, for their tests."""

from __future__ import annotations

import asyncio
from typing import Any

from control_plane.admission.rate_leases import RateLeases
from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.keys import CacheScope
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.algorithms.steps import Steps
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.infer_call import CacheStatus, Frontend, InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.core.scope import EVERYTHING
from control_plane.core.tensor import Tensor
from control_plane.inference.caching.cached_inference import CachedInference
from control_plane.inference.caching.verbatim_cache import MessageKey, VerbatimCache
from control_plane.inference.inference import InferenceService
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.tenant import Tenant
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers
from tests.fakes import FakeRecorder
from tests.fakes.governance import FakeMeter, governance, known_state
from tests.fakes.triton.unparsed_request import FakeUnparsedRequest

CALLER = Principal("team", "k1", EVERYTHING, is_known=True)
CALL = InferCall("m", "", "", (Tensor("X", "FP32", (3, 2)),), elements=6)
ROWS, ELEMENTS = 3, 6
ANSWER, MESSAGE = b"answer", (b"head", b"body")
FIRST, SECOND = (Fingerprint(digest * 32, is_cacheable=True) for digest in (b"1", b"2"))
TTL_S = 1000.0
TODAY_S = 1_700_000_000.0
MAX_ROOM = 1 << 20


class Request(FakeUnparsedRequest):
    """Fake `InferRequest` that is answered from the response cache, and keeps its hit for the verbatim cache."""

    frontend = Frontend.HTTP
    timeout_s = None

    def __init__(self, hits: VerbatimCache[bytes], message: MessageKey, principal: Principal) -> None:
        self.hits = hits
        self.message = message
        self.principal = principal

    def read_at_once(self) -> None: ...

    def read(self) -> Steps[InferCall]:
        yield from ()
        return CALL

    def readdress(self, model_name: str, model_version: str) -> None: ...

    async def send(self, server: Upstream, *, timeout_s: float) -> bytes:
        raise AssertionError("the answer is in the cache")

    def outcome(self, answer: bytes) -> Outcome:
        return Outcome.ANSWERED

    def key(self, scope: CacheScope, call: InferCall) -> bytes | None:
        return key_in(scope)

    def encode_answer(self, answer: bytes) -> bytes | None:
        raise AssertionError("nothing is computed")

    def decode_answer(self, encoded: bytes, status: CacheStatus) -> bytes:
        return encoded

    def mark(self, answer: bytes, status: CacheStatus) -> bytes:
        return answer

    def keep_verbatim(self, call: InferCall, key: bytes, answer: bytes) -> None:
        size_bytes = len(answer)
        if self.hits.takes(self.principal, size_bytes):
            self.hits.keep(self.message, self.principal, call, key, answer, size_bytes=size_bytes)


def key_in(scope: CacheScope) -> bytes:
    return scope.key(b"http", b"", b"i" * 32)


class Bench:
    """Fake frontend: asks the verbatim cache, then the response cache, whose hits the former keeps."""

    def __init__(self, *tenants: Tenant, meter: Any = None, room: int = MAX_ROOM, leases: RateLeases | None = None) -> None:
        now_s = asyncio.get_running_loop().time
        self.today_s = TODAY_S
        self.recorder, self.meter = FakeRecorder(), meter or FakeMeter(has_log=False)
        self.known, self.fingerprints, self.kept = known_state(tenants=tenants), Fingerprints(), EvictingCache(room)
        self.fingerprints.change({"m": FIRST})
        self.cache = ResponseCache(self.fingerprints, self.kept, generation_of=self.known.purge_generation_of, ttl_s=TTL_S, now_s=now_s)
        self.service = InferenceService(
            servers=Servers(),
            recorder=self.recorder,
            governance=governance(self.known, now_s=now_s, meter=self.meter, leases=leases),
            default_timeout_s=30.0,
            cached=CachedInference(self.cache, now_s=now_s),
            now_s=now_s,
            today_s=lambda: TODAY_S,
        )
        self.hits: VerbatimCache[bytes] = VerbatimCache(Frontend.HTTP, self.service.running, self.cache, today_s=lambda: self.today_s)

    def compute(self, answer: bytes = ANSWER, *, principal: Principal = CALLER) -> None:
        """Put an answer into the cache, as a first request would."""
        scope = self.cache.scope("m", None, principal.tenant)
        assert scope is not None
        self.cache.put(scope, key_in(scope), answer, cost_units=1.0)

    def ask(self, message: MessageKey = MESSAGE, *, principal: Principal = CALLER) -> tuple[str, bytes | None]:
        known = self.hits.answer(message)
        if known is not None:
            return "known", known
        call, route, _ = self.service.resolve(CALL, principal, FakeUnparsedRequest())
        scope = self.cache.scope(call.model_name, route, principal.tenant)
        if scope is None or self.cache.get_local(key_in(scope)) is None:
            return "nothing", None
        try:
            self.service.infer(Request(self.hits, message, principal)).send(None)
        except StopIteration as ended:  # a hit waits for nothing
            return "kept", ended.value
        raise AssertionError("it waits for something")

    def begin(self, *, principal: Principal = CALLER) -> None:
        """Send the request until the verbatim cache has its answer."""
        self.compute(principal=principal)
        assert [self.ask(principal=principal) for _ in range(2)] == [("kept", ANSWER), ("known", ANSWER)]
