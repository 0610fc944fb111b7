"""Answers that were given before: level one in this process, level two in a Redis that gateways share.

An answer is found by a key over everything that it depends on: what is loaded under the model's name (`Fingerprints`), the
last purge, the caller's tenant where a route is private, and the request. What is not certain is not kept, so an
answer from here is the one that the model would give now. Doors make the keys of requests (`cache/domain/cached_response`);
`inference/inference` and `embeddings/embeddings` ask.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import Struct

from control_plane.cache.domain.cached_response import identity_of
from control_plane.cache.domain.eviction import Kept, KeptAnswers
from control_plane.cache.domain.lookup_worth import UsualTime
from control_plane.cache.ports import SharedCache
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.infer_call import CacheStatus
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.route import CachePolicy, Route
from control_plane.telemetry.request_counts import CacheHolding

_FOLLOW_THE_MODEL = CachePolicy()

_UNKNOWN_S = 0.025
"""What computing is taken to take that has not been done here yet, so that level two is asked unless it is slow."""

_MOST_SCOPES = 4096

_EXPIRY = Struct("<d")
"""Before each value in level two: when it is no longer to be found, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class CacheScope:
    """How the answers of one model are kept for some callers, as of now."""

    model: str
    fingerprint: Fingerprint
    generation: str
    """Changes with each purge."""
    policy: CachePolicy
    tenant: str
    """Whose they are alone; empty: everybody's."""
    seed: bytes = field(repr=False)

    def key(self, *parts: bytes | bytearray) -> bytes:
        """Of a request that is so many `parts`, in this order, and nothing else: 32 bytes. One use has one number of parts."""
        return identity_of(self.seed, *parts)


class ResponseCache:
    """The response cache of one process; with no room at all it keeps nothing."""

    def __init__(
        self,
        fingerprints: Fingerprints,
        kept: KeptAnswers,
        shared: SharedCache | None = None,
        *,
        generation_of: Callable[[str], str] = lambda model: "",
        max_entry_bytes: int = 2**20,
        ttl_s: float = 3600.0,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`generation_of` a model changes with each purge of it. `today_s` is seconds since 1970."""
        self._fingerprints = fingerprints
        self._kept = kept
        self._shared = shared
        self._generation_of = generation_of
        self._max_entry_bytes = max_entry_bytes
        self._ttl_s = ttl_s
        self._now_s = now_s
        self._today_s = today_s
        self.counts: Counter[tuple[str, CacheStatus]] = Counter()
        """Answers so far, by model and what was done for them; whoever asks this counts."""
        self._scopes: dict[tuple[str, str, str, str], CacheScope] = {}
        self._overheads: dict[str, UsualTime] = {}

    @property
    def shared(self) -> SharedCache | None:
        """Level two, if there is one."""
        return self._shared

    @property
    def holding(self) -> CacheHolding:
        """What level one has, and has had."""
        return CacheHolding(len(self._kept), self._kept.held_bytes, self._kept.evicted)

    def scope(self, model: str, route: Route | None, tenant: str) -> CacheScope | None:
        """How answers of `model` are kept for a caller of `tenant` who came by `route`; None: they are not."""
        fingerprint = self._fingerprints.of(model)
        if fingerprint is None or not fingerprint.is_repeatable:
            return None
        policy = _FOLLOW_THE_MODEL if route is None else route.cache
        if not (fingerprint.keeps_answers if policy.is_on is None else policy.is_on):
            return None
        return self._scope(model, fingerprint, route, tenant if policy.is_private else "")

    def is_current(self, scope: CacheScope) -> bool:
        """Whether what was computed since `scope` was asked for is an answer of the model that it was asked for."""
        return self._fingerprints.of(scope.model) is scope.fingerprint and self._generation_of(scope.model) == scope.generation

    @property
    def generation(self) -> int:
        """Grows whenever what is loaded may have changed."""
        return self._fingerprints.generation

    def entry(self, key: bytes) -> Kept | None:
        """Of this process, for `look_again`."""
        return self._kept.entry(key)

    def look_again(self, kept: Kept) -> bool:
        """Whether what was found before is still to be found, as of the `generation` in which it was."""
        return self._kept.use_again(kept, self._now_s())

    def look(self, key: bytes) -> bytes | None:
        """What this process has."""
        return self._kept.get(key, self._now_s())

    def computed(self, scope: CacheScope, took_s: float, *, cost_units: float | None) -> None:
        """An answer took so long, from the decision to compute it until it was here; level two must be quicker than that.

        What it took beyond its compute units (None: nobody knows them) is waiting, the way to Triton and this process's own slowness.
        The same slows answers of level two, so it must not speak against them.
        """
        if self._shared is not None:
            if scope.model not in self._overheads and len(self._overheads) >= _MOST_SCOPES:
                self._overheads.clear()
            self._overheads.setdefault(scope.model, UsualTime()).add(max(0.0, took_s - (cost_units or 0.0) / 1e3))

    async def find(self, scope: CacheScope, keys: Sequence[bytes], *, cost_units: float | None, timeout_s: float) -> list[bytes | None]:
        """What there is, in the order of `keys`; level two is asked for what level one lacks, and waited for as long as is worth it.

        `cost_units` is what computing all of it would take, None where nobody knows; `timeout_s` is what the caller has left.
        """
        now_s = self._now_s()
        found = [self._kept.get(key, now_s) for key in keys]
        missing = [number for number, value in enumerate(found) if value is None]
        if missing and self._shared is not None:
            units = None if cost_units is None else cost_units / len(keys)
            there = await self._find_shared(scope, [keys[each] for each in missing], units, timeout_s)
            for number, value in zip(missing, there, strict=True):
                found[number] = value
        return found

    async def find_shared(self, scope: CacheScope, key: bytes, *, cost_units: float | None, timeout_s: float) -> bytes | None:
        """What level two has, for a key that level one has not."""
        return None if self._shared is None else (await self._find_shared(scope, [key], cost_units, timeout_s))[0]

    async def _find_shared(
        self, scope: CacheScope, keys: Sequence[bytes], cost_units: float | None, timeout_s: float
    ) -> list[bytes | None]:
        """`cost_units` of one."""
        assert self._shared is not None, "there is no level two"
        computing_s = self._computing_s(scope, None if cost_units is None else cost_units * len(keys))
        values = await self._shared.get(keys, computing_s=min(computing_s, timeout_s))
        found = [self._unexpired(value) for value in values]
        for key, aged in zip(keys, found, strict=True):
            if aged is not None and self.is_current(scope):
                value, left_s = aged
                self._kept.put(key, value, cost_units=1.0 if cost_units is None else cost_units, expires_s=self._now_s() + left_s)
        return [None if aged is None else aged[0] for aged in found]

    def _computing_s(self, scope: CacheScope, cost_units: float | None) -> float:
        overhead, units_s = self._overheads.get(scope.model), (cost_units or 0.0) / 1e3
        return max(_UNKNOWN_S, units_s) if overhead is None else overhead.usual_s + units_s

    def _unexpired(self, stored: bytes | None) -> tuple[bytes, float] | None:
        """What was kept, and the seconds that it has left; gateways' clocks are taken to agree within what a ttl leaves open."""
        if stored is None or len(stored) < _EXPIRY.size:
            return None
        left_s = _EXPIRY.unpack_from(stored)[0] - self._today_s()
        return (stored[_EXPIRY.size :], left_s) if left_s > 0 else None

    def keep(self, scope: CacheScope, key: bytes, value: bytes, *, cost_units: float) -> None:
        """Keep an answer that was computed since `scope` was asked for, if it is worth it and still that model's."""
        if cost_units < scope.policy.min_cost_units or len(value) > self._max_entry_bytes or not self.is_current(scope):
            return
        ttl_s = scope.policy.ttl_s or self._ttl_s
        self._kept.put(key, value, cost_units=cost_units, expires_s=self._now_s() + ttl_s)
        if self._shared is not None:
            self._shared.put(key, _EXPIRY.pack(self._today_s() + ttl_s) + value, ttl_s=ttl_s)

    def _scope(self, model: str, fingerprint: Fingerprint, route: Route | None, tenant: str) -> CacheScope:
        generation = self._generation_of(model)
        policy, via = (_FOLLOW_THE_MODEL, "") if route is None else (route.cache, route.name)
        name = (model, via, generation, tenant)
        scope = self._scopes.get(name)
        if scope is None or scope.fingerprint is not fingerprint or scope.policy is not policy:
            if len(self._scopes) >= _MOST_SCOPES:
                self._scopes.clear()
            whose = tenant.encode() if tenant else b"everybody"
            lasts = b"%r" % policy.ttl_s  # what was kept for long is not there for a route that wants it fresher
            seed = identity_of(fingerprint.digest, model.encode(), generation.encode(), b"private" if tenant else b"", whose, lasts)
            scope = self._scopes[name] = CacheScope(model, fingerprint, generation, policy, tenant, seed)
        return scope
