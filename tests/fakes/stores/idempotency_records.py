from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from control_plane.admin.idempotency.ports import KEEP_S, Record, caller_of, require_room
from control_plane.core.errors import StoreUnavailable


@dataclass
class FakeIdempotencyRecords:
    """In-memory `admin/idempotency/ports.IdempotencyRecords`, which several gateways may share; while it `is_away` every call raises
    StoreUnavailable."""

    now_s: Callable[[], float] = lambda: 0.0
    records: dict[str, tuple[Record, float]] = field(default_factory=dict)
    is_away: bool = False

    async def begin(self, name: str, digest: str) -> Record | None:
        self._reach()
        now_s = self.now_s()
        self.records = {each: held for each, held in self.records.items() if now_s < held[1] <= now_s + KEEP_S}
        if name in self.records:
            return self.records[name][0]
        require_room(sum(each.startswith(caller_of(name)) for each in self.records), len(self.records))
        self.records[name] = Record(digest), now_s + KEEP_S
        return None

    async def answer(self, name: str, digest: str, sealed: str) -> None:
        self._reach()
        if self._is_open(name, digest):
            self.records[name] = Record(digest, sealed), self.records[name][1]

    async def forget(self, name: str, digest: str) -> None:
        self._reach()
        if self._is_open(name, digest):
            del self.records[name]

    async def close(self) -> None: ...

    def _is_open(self, name: str, digest: str) -> bool:
        return name in self.records and self.records[name][0] == Record(digest)

    def _reach(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the records are away")
