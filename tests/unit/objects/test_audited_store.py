from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from control_plane.audit.domain.entry import Actor
from control_plane.audit.trail import AuditTrail
from control_plane.core.errors import Conflict, ObjectNotFound, StoreUnavailable
from control_plane.objects.audited_store import AuditedStore, on_behalf
from control_plane.objects.domain.stored import Kind, Stored
from tests.aio import run
from tests.fakes.stores.audit_log import FakeAuditLog
from tests.fakes.stores.state_store import FakeStateStore


class Bench:
    def __init__(self, store: FakeStateStore | None = None) -> None:
        self.log = FakeAuditLog()
        self.inner = store or FakeStateStore()
        self.store = AuditedStore(self.inner, AuditTrail(self.log), Actor("me", "why"))

    @property
    def told(self) -> list[tuple[str, Any, Any]]:
        return [(each.change.action, each.change.before, each.change.after) for each in self.log.entries]


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.APPLIED])
def test_each_change_of_each_kind_is_there_with_what_was_before(kind: Kind) -> None:
    bench = Bench()

    async def live() -> None:
        await bench.store.put(kind, "x", {"a": 1})
        await bench.store.put(kind, "x", {"a": 2})
        await bench.store.delete(kind, "x")
        await bench.store.restore([Stored(kind, "y", 1, {"a": 3})])

    run(live())
    assert bench.told == [
        ("create", None, {"a": 1}),
        ("replace", {"a": 1}, {"a": 2}),
        ("delete", {"a": 2}, None),
        ("restore", None, {"objects": 1}),
    ]
    assert {(each.change.who, each.change.reason) for each in bench.log.entries} == {("me", "why")}


def test_it_is_written_before_the_effect() -> None:
    bench = Bench()
    seen: list[int] = []

    class Watching(FakeStateStore):
        async def put(self, kind: Kind, name: str, body: Mapping[str, Any], *, expected: int | None = None) -> Stored:
            seen.append(len(bench.log.entries))
            return await super().put(kind, name, body, expected=expected)

    bench.store = AuditedStore(Watching(), AuditTrail(bench.log), Actor("me"))
    run(bench.store.put(Kind.TENANT, "x", {}))
    assert seen == [1]


def test_what_cannot_be_written_down_is_not_done() -> None:
    bench = Bench()
    run(bench.store.put(Kind.TENANT, "x", {"a": 1}))
    bench.log.is_away = True
    for change in (
        bench.store.put(Kind.TENANT, "x", {"a": 2}),
        bench.store.put(Kind.TENANT, "y", {}),
        bench.store.delete(Kind.TENANT, "x"),
        bench.store.restore([]),
    ):
        with pytest.raises(
            StoreUnavailable, match="nothing was changed, since the audit log cannot be written: the disk is full"
        ) as refused:
            run(change)
        assert refused.value.is_full
    (left,) = run(bench.inner.changes(0, timeout_s=0))
    assert (left.name, left.body) == ("x", {"a": 1})


def test_what_fails_after_it_was_written_down_is_said_to_have() -> None:
    class Breaking(FakeStateStore):
        async def put(self, kind: Kind, name: str, body: Mapping[str, Any], *, expected: int | None = None) -> Stored:
            raise StoreUnavailable("it hangs")

    bench = Bench(Breaking())
    with pytest.raises(StoreUnavailable, match="it hangs"):
        run(bench.store.put(Kind.TENANT, "x", {"a": 1}))
    first, second = bench.log.entries
    assert (second.change.action, second.change.of) == ("failed", first.number)
    assert second.change.after == {"error": "it hangs", "code": "store_unavailable"}


def test_of_a_refusal_nothing_is_written() -> None:
    bench = Bench()
    run(bench.store.put(Kind.TENANT, "x", {}))
    with pytest.raises(Conflict):
        run(bench.store.put(Kind.TENANT, "x", {}, expected=0))
    with pytest.raises(Conflict):
        run(bench.store.delete(Kind.TENANT, "x", expected=7))
    with pytest.raises(ObjectNotFound):
        run(bench.store.delete(Kind.TENANT, "y"))
    assert len(bench.log.entries) == 1


def test_of_two_who_write_at_once_each_has_the_right_before() -> None:
    class Raced(FakeStateStore):
        raced = False

        async def get(self, kind: Kind, name: str) -> Stored | None:
            found = await super().get(kind, name)
            if not self.raced:
                self.raced = True
                self.state.write(kind, name, {"a": "the other's"})
            return found

    bench = Bench(Raced())
    run(bench.store.put(Kind.TENANT, "x", {"a": "mine"}))
    assert [each[0] for each in bench.told] == ["create", "failed", "replace"]
    assert bench.told[-1] == ("replace", {"a": "the other's"}, {"a": "mine"})


def test_who_applied_what_is_bookkeeping() -> None:
    bench = Bench()
    run(bench.store.put(Kind.APPLIED, "Route:x", {}))
    run(bench.store.delete(Kind.APPLIED, "Route:x"))
    assert bench.told == []


def test_on_behalf_of_another() -> None:
    bench = Bench()
    run(on_behalf(bench.store, Actor("you")).put(Kind.TENANT, "x", {}))
    assert bench.log.entries[0].change.who == "you"
    assert on_behalf(bench.inner, Actor("you")) is bench.inner
