from __future__ import annotations

from dataclasses import dataclass, field, replace

from control_plane.core.errors import StoreUnavailable
from control_plane.fleet.domain.leadership.lease import Lease, next_token


@dataclass
class FakeRecord:
    """The lease record of a store; several `FakeLeaseStore`s may share one."""

    lease: Lease | None = None
    run: str = "run 1"
    """Another one after the store has lost writes."""


@dataclass
class FakeLeaseStore:
    """In-memory `fleet/ports.LeaseStore`; while it `is_away` every call raises StoreUnavailable."""

    record: FakeRecord = field(default_factory=FakeRecord)
    is_away: bool = False
    token: int = 0
    wall_s: float = 0.0

    async def read(self) -> Lease | None:
        self._reach()
        self.token = max(self.token, self.record.lease.token if self.record.lease else 0)
        return self.record.lease

    async def acquire(self, seen: Lease | None, *, holder: str, ttl_s: float) -> Lease | None:
        self._reach()
        if not _is_same(self.record.lease, seen):
            return None
        self.record.lease = Lease(next_token(max(self.token, seen.token if seen else 0), self.wall_s), holder, ttl_s, run=self.record.run)
        return self.record.lease

    async def renew(self, lease: Lease) -> Lease | None:
        self._reach()
        if not self._is_of(lease):
            return None
        assert self.record.lease is not None
        self.record.lease = replace(self.record.lease, beat=self.record.lease.beat + 1, run=self.record.run)
        return self.record.lease

    async def resume(self, lease: Lease) -> Lease | None:
        self._reach()
        return await self.renew(lease) if lease.run == self.record.run else None

    async def release(self, lease: Lease) -> None:
        self._reach()
        if self._is_of(lease):
            assert self.record.lease is not None
            self.record.lease = replace(self.record.lease, beat=self.record.lease.beat + 1, is_released=True)

    async def close(self) -> None:
        pass

    def _is_of(self, lease: Lease) -> bool:
        now = self.record.lease
        return now is not None and (now.token, now.holder, now.is_released) == (lease.token, lease.holder, False)

    def _reach(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the store is away")


def _is_same(now: Lease | None, seen: Lease | None) -> bool:
    if now is None or seen is None:
        return now is seen
    return (now.token, now.holder, now.beat) == (seen.token, seen.holder, seen.beat)
