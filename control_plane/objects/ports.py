"""What must be remembered, and what is told to the outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from control_plane.admission.domain.demand import Exchange
from control_plane.admission.domain.rate_limit import Drawn, RateLimit
from control_plane.core.infer_call import Door, Outcome
from control_plane.core.principal import Principal
from control_plane.metering.domain.usage import Usage, UsageBatch, UsageEvent, UsageKey
from control_plane.objects.domain.stored import Kind, Stored
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts


class StateStore(Protocol):
    """What the control plane must remember, durably. Each method raises StoreUnavailable when the store cannot be reached."""

    async def get(self, kind: Kind, name: str) -> Stored | None:
        """As it is now; None where there is none."""

    async def list_all(self, kind: Kind) -> list[Stored]:
        """Every object of a kind, by name."""

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any], *, expected: int | None = None) -> Stored:
        """Write it whole; durable when this returns.

        `expected` is the resource_version that it must have now, 0 that it must not exist. Raises Conflict.
        """

    async def delete(self, kind: Kind, name: str, *, expected: int | None = None) -> None:
        """Raises ObjectNotFound, Conflict."""

    async def changes(self, since: int, *, timeout_s: float) -> list[Stored]:
        """What has changed after `since`, each object once in its newest form, in order of change.

        Waits for a first change for `timeout_s` at most; then it is empty. `since` 0 gives everything, and is what to ask for
        after StoreUnavailable: the store may have lost changes, or be another one. (One whose last change is before
        `since` raises that too.)
        """

    async def restore(self, objects: Iterable[Stored]) -> None:
        """Hold these and nothing else, in one step; their resource_versions are new ones."""

    async def close(self) -> None: ...


class UsageStore(Protocol):
    """Durable sums of what was used. Each method raises StoreUnavailable when it cannot be reached."""

    async def add(self, batch: UsageBatch) -> None:
        """Count it, once, however often it is sent: a caller that does not know whether it arrived sends it again."""

    async def totals(self, *, since_day: str, until_day: str) -> list[tuple[UsageKey, Usage]]:
        """Sums of the days from `since_day` to `until_day`, both included, in order of their keys; of every batch that was added."""

    async def restore(self, totals: Iterable[tuple[UsageKey, Usage]]) -> None:
        """Hold these sums and nothing else, in one step."""

    async def run(self) -> None:
        """Do what goes on beside the rest, through outages, until cancelled; returns where there is nothing to do."""

    async def close(self) -> None: ...


class DemandBoard(Protocol):
    """Where processes that share tenants' limits tell each other what is asked of them; nothing of it lasts."""

    async def exchange(self, process: str, demand: Mapping[str, float]) -> Exchange:
        """Tell this process's demand, in place of what it told before, and hear that of all. Raises StoreUnavailable.

        A process that has not exchanged for `LIVE_S` counts no longer; `process` is a name that no other has.
        """

    async def leave(self, process: str) -> None:
        """It counts no longer; idempotent. Raises StoreUnavailable."""

    async def close(self) -> None: ...


class TokenBuckets(Protocol):
    """Tenants' token buckets, which several processes draw from; nothing of it lasts longer than a bucket takes to fill."""

    async def draw(self, tenant: str, limit: RateLimit, *, want: int, spent: int) -> Drawn:
        """As `policy.rate_limit.draw`, of the tenant's one bucket. Raises StoreUnavailable."""

    async def close(self) -> None: ...


class TokenVerifier(Protocol):
    """Checks the tokens (JWTs) of another issuer; without waiting, since every request asks."""

    def verify(self, token: str, *, before_signature: Callable[[], None]) -> Principal:
        """Whom it speaks for; `before_signature` is called before what is costly, and may raise.

        Raises Unauthenticated: why it does not count, in words that repeat nothing of it.
        """


class UsageSpill(Protocol):
    """Where batches go that the store could not take before the process ended."""

    def batches(self) -> Iterator[UsageBatch]:
        """Those of earlier processes that have not been removed, in order; what cannot be read is left where it is."""

    def write(self, batch: UsageBatch) -> None:
        """Keep it for a later process. Raises StoreUnavailable."""

    def remove(self, batch: UsageBatch) -> None:
        """The store has it. One that is gone already is no error."""


class SharedCache(Protocol):
    """Level two of the response cache, which gateways share. It is never needed: what fails, is late or is damaged is not there."""

    @property
    def counts(self) -> SharedCacheCounts:
        """What became of lookups and writes so far; it goes on counting."""

    @property
    def is_open(self) -> bool:
        """Whether it is not asked now, since it cannot be reached or failed too often."""

    @property
    def answer_s(self) -> float:
        """Seconds that an answer usually takes, as this process experiences them; 0.0 while that is not known."""

    async def get(self, keys: Sequence[bytes], *, computing_s: float) -> list[bytes | None]:
        """Their values, in that order, as far as they come while waiting costs less than computing all of them, which takes `computing_s`.

        Raises nothing; cancelling is heeded at once.
        """

    def put(self, key: bytes, value: bytes, *, ttl_s: float) -> None:
        """Keep it, soon, without waiting; whole seconds, one at least. What there is no room for now is dropped and counted."""

    async def run(self) -> None:
        """Write what was put until cancelled, through outages."""

    async def close(self) -> None: ...


class RequestLog(Protocol):
    """A line per request, for people and log collectors."""

    def write(self, event: UsageEvent) -> None:
        """Without waiting; what cannot be written is dropped and counted."""


class RequestRecorder(Protocol):
    """Counts what the gateway answered."""

    def record(self, *, model_name: str, door: Door, outcome: Outcome, duration_s: float, count: int = 1) -> None:
        """`count` of them that took `duration_s` each."""
