"""Response cache: level one in the memory of this process, level two in a Redis that gateways share.

An entry's key is a digest of everything that the response depends on: the fingerprint of what is loaded under the model's name
(`Fingerprints`), the last purge, the caller's tenant if the route's cache is private, and the request. If one of these is not
certain, nothing is cached; so a hit is the response that the model would give now. Frontends compute the request's part of the key
(`cache/keys`); `inference/caching/cached_inference` and `embeddings/embeddings` look up and store. This module knows no protocol:
values are bytes to it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from struct import Struct

from control_plane.cache.domain.eviction import CacheEntry, EvictingCache
from control_plane.cache.domain.lookup_worth import RunningMedian
from control_plane.cache.keys import CacheScope, identity_of
from control_plane.cache.ports import SharedCache
from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.infer_call import CacheStatus
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.route import CachePolicy, Route
from control_plane.telemetry.request_counts import CacheSize

_FOLLOW_THE_MODEL = CachePolicy()
"""Policy of a request that came by no route: the model's own configuration says whether its responses are
cached.
"""

_UNKNOWN_S = 0.025
"""Assumed time to compute a response of a model that this process has not measured yet: level two is then
asked unless it is slow.
"""

_MAX_SCOPES = 4096
"""Most scopes, and models' overheads, that are remembered; both cost little to make anew."""

_COPIED_AT_ONCE = 64
"""Values of level two that are copied to level one in one turn of the event loop: each takes 10 us, and 30 us where others
are evicted for it. A call of `/v1/embeddings` may have 2,048."""

_EXPIRY = Struct("<d")
"""Header of each value in level two: when the entry expires, in seconds since 1970. Redis's own TTL knows
whole seconds only.
"""


def _policy_of(route: Route | None) -> CachePolicy:
    return _FOLLOW_THE_MODEL if route is None else route.cache


def _caches(fingerprint: Fingerprint, policy: CachePolicy) -> bool:
    """Whether responses are cached of a model with this fingerprint."""
    return fingerprint.is_repeatable and (fingerprint.is_cacheable if policy.is_on is None else policy.is_on)


class ResponseCache:
    """Two-level response cache of one process; with a capacity of zero bytes level one stores nothing."""

    def __init__(
        self,
        fingerprints: Fingerprints,
        local: EvictingCache,
        shared: SharedCache | None = None,
        *,
        generation_of: Callable[[str], str] = lambda model: "",
        max_entry_bytes: int = 2**20,
        ttl_s: float = 3600.0,
        now_s: Callable[[], float] = time.monotonic,
        today_s: Callable[[], float] = time.time,
    ) -> None:
        """`generation_of` returns the id of a model's last purge; `today_s` is the wall clock, in seconds
        since 1970.

        Level one expires by the monotonic clock `now_s`; level two by the wall clock, since gateways share no
        other.
        """
        self.fingerprints = fingerprints
        """What is loaded; its `generation` grows whenever that may have changed."""
        self._local = local
        self._shared = shared
        self._generation_of = generation_of
        self._max_entry_bytes = max_entry_bytes
        self._ttl_s = ttl_s
        self._now_s = now_s
        self._today_s = today_s
        self.counts: Counter[tuple[str, CacheStatus]] = Counter()
        """Responses so far by model and cache status; the callers of this cache count, since only they know
        the outcome.
        """
        self._scopes = BoundedCache[tuple[str, str, str, str], CacheScope].of_entries(_MAX_SCOPES)
        self._overheads = BoundedCache[str, RunningMedian].of_entries(_MAX_SCOPES)

    @property
    def shared(self) -> SharedCache | None:
        """Level two; None where no shared cache is configured."""
        return self._shared

    @property
    def holding(self) -> CacheSize:
        """Size of level one (entries, bytes) and its evictions so far, for metrics."""
        return CacheSize(len(self._local), self._local.held_bytes, self._local.evicted)

    def scope(self, model: str, route: Route | None, tenant: str) -> CacheScope | None:
        """Return the scope for a caller of `tenant` who came by `route`, or None where responses of `model`
        are not cached.
        """
        fingerprint = self.fingerprints.get(model)
        if fingerprint is None or not _caches(fingerprint, policy := _policy_of(route)):
            return None  # what is loaded is unknown, or may answer equal requests differently
        return self._scope(model, fingerprint, route, tenant if policy.is_private else "")

    def is_repeatable(self, model: str, route: Route | None) -> bool:
        """Whether computing a request twice does no harm: the model says so, or its responses are cached, or did or
        were until a load began. Just then, when a replica has died, requests have to be sent again."""
        fingerprint = self.fingerprints.latest(model)
        return fingerprint is not None and (fingerprint.may_be_computed_twice or _caches(fingerprint, _policy_of(route)))

    def is_current(self, scope: CacheScope) -> bool:
        """Whether the model was neither loaded anew nor purged since `scope` was made, so a response computed
        since is the scope's.
        """
        # By identity: a model that was unloaded and loaded again may have an equal fingerprint, yet in
        # between another one may have computed the response.
        return self.fingerprints.get(scope.model) is scope.fingerprint and self._generation_of(scope.model) == scope.generation

    def entry(self, key: bytes) -> CacheEntry | None:
        """Return the level-one entry of `key`, a handle for `reuse`, without counting a use; None on a
        miss.
        """
        return self._local.entry(key)

    def reuse(self, entry: CacheEntry) -> bool:
        """Count another hit of an entry and return whether it is still valid.

        The caller checks that the `generation` of `fingerprints` has not changed since it got the entry: then the key is still the
        right one.
        """
        return self._local.reuse(entry, self._now_s())

    def get_local(self, key: bytes) -> bytes | None:
        """Look up `key` in level one; None on a miss."""
        return self._local.get(key, self._now_s())

    def record_compute_time(self, scope: CacheScope, took_s: float, *, cost_units: float | None) -> None:
        """Record that computing a response took `took_s`, from the decision to compute until it arrived;
        level two must be quicker.

        `cost_units` are milliseconds of compute, None where unknown. The rest of the time is queueing, the
        way to Triton and delays of this process's own event loop. It is learned apart and added back to the
        estimate of each computation: the same delays slow the answers of level two, and must not make it look
        slow beside computing.
        """
        if self._shared is not None:
            overhead = self._overheads.get(scope.model)
            if overhead is None:
                overhead = RunningMedian()
                self._overheads.keep(scope.model, overhead)
            overhead.add(max(0.0, took_s - (cost_units or 0.0) / 1e3))

    async def get_many(self, scope: CacheScope, keys: Sequence[bytes], *, cost_units: float | None, timeout_s: float) -> list[bytes | None]:
        """Look up `keys` in level one, then those it lacks in level two, and return the values in order, None
        for each miss.

        `cost_units` is the cost of computing all of them, None where unknown: it bounds the wait for level
        two. `timeout_s` is the time that the caller's deadline leaves.
        """
        now_s = self._now_s()
        found = [self._local.get(key, now_s) for key in keys]
        missing = [number for number, value in enumerate(found) if value is None]
        if missing and self._shared is not None:
            units = None if cost_units is None else cost_units / len(keys)
            there = await self._find_shared(scope, [keys[each] for each in missing], units, timeout_s)
            for number, value in zip(missing, there, strict=True):
                found[number] = value
        return found

    async def find_shared(self, scope: CacheScope, key: bytes, *, cost_units: float | None, timeout_s: float) -> bytes | None:
        """Look up in level two a key that the caller has not found in level one; None on a miss or without a
        level two.
        """
        return None if self._shared is None else (await self._find_shared(scope, [key], cost_units, timeout_s))[0]

    async def _find_shared(
        self, scope: CacheScope, keys: Sequence[bytes], cost_units: float | None, timeout_s: float
    ) -> list[bytes | None]:
        """Look up `keys` in level two and copy what is found to level one; `cost_units` is the cost of one of
        them.
        """
        assert self._shared is not None, "there is no level two"
        computing_s = self._computing_s(scope, None if cost_units is None else cost_units * len(keys))
        values = await self._shared.get(keys, computing_s=min(computing_s, timeout_s))
        found = [self._unexpired(value, self._ttl_s_of(scope)) for value in values]
        for number, (key, aged) in enumerate(zip(keys, found, strict=True), 1):
            # The model may have been loaded anew while level two was asked. The caller still gets its answer,
            # as if it had asked a moment earlier, but nobody finds it here later.
            if aged is not None and self.is_current(scope):
                value, left_s = aged
                self._local.put(key, value, cost_units=1.0 if cost_units is None else cost_units, expires_s=self._now_s() + left_s)
            if number % _COPIED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return [None if aged is None else aged[0] for aged in found]

    def _computing_s(self, scope: CacheScope, cost_units: float | None) -> float:
        """Estimate how long computing would take: `cost_units` of compute and the model's usual overhead."""
        overhead, units_s = self._overheads.get(scope.model), (cost_units or 0.0) / 1e3
        return max(_UNKNOWN_S, units_s) if overhead is None else overhead.median_s + units_s

    def _unexpired(self, stored: bytes | None, ttl_s: float) -> tuple[bytes, float] | None:
        """Return the value and the seconds until it expires, `ttl_s` at most; None if it has expired or is not one of ours.

        The clocks of gateways are assumed to agree well enough: an error of theirs shortens a TTL by as much, or
        lengthens it by as much again at most.
        """
        if stored is None or len(stored) < _EXPIRY.size:
            return None
        left_s = min(_EXPIRY.unpack_from(stored)[0] - self._today_s(), ttl_s)
        return (stored[_EXPIRY.size :], left_s) if left_s > 0 else None

    def put(self, scope: CacheScope, key: bytes, value: bytes, *, cost_units: float) -> None:
        """Store a response that was computed after `scope` was made.

        Not stored are a response that costs less than the policy's minimum, one that is too large, and one
        computed while the model was loaded anew or purged, since nobody knows which version of the model gave
        it.
        """
        if cost_units < scope.policy.min_cost_units or len(value) > self._max_entry_bytes or not self.is_current(scope):
            return
        ttl_s = self._ttl_s_of(scope)
        self._local.put(key, value, cost_units=cost_units, expires_s=self._now_s() + ttl_s)
        if self._shared is not None:
            self._shared.put(key, _EXPIRY.pack(self._today_s() + ttl_s) + value, ttl_s=ttl_s)

    def _ttl_s_of(self, scope: CacheScope) -> float:
        return scope.policy.ttl_s or self._ttl_s

    def _scope(self, model: str, fingerprint: Fingerprint, route: Route | None, tenant: str) -> CacheScope:
        """Return the scope from the memo, or make it: a request must not pay for a digest of what seldom
        changes.
        """
        generation = self._generation_of(model)
        policy, via = (_FOLLOW_THE_MODEL, "") if route is None else (route.cache, route.name)
        name = (model, via, generation, tenant)
        scope = self._scopes.get(name)
        if scope is None or scope.fingerprint is not fingerprint or scope.policy is not policy:
            whose = tenant.encode() if tenant else b"everybody"
            # The TTL is part of the key: a response stored for a long time must not be found by a route that
            # wants it fresher.
            lasts = b"%r" % policy.ttl_s
            seed = identity_of(fingerprint.digest, model.encode(), generation.encode(), b"private" if tenant else b"", whose, lasts)
            scope = CacheScope(model, fingerprint, generation, policy, tenant, seed)
            self._scopes.forget(name)
            self._scopes.keep(name, scope)
        return scope
