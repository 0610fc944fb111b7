"""Whose webhooks are delivered next: none is before others because it has more, or because its receiver is slow."""

from __future__ import annotations

from control_plane.jobs.domain.delivery_turns import OF_FAILING_TENANT, OF_TENANT, turns


def ids(tenant: str, count: int) -> list[str]:
    return [f"{tenant}{number}" for number in range(count)]


def test_tenants_have_equal_shares_of_the_room() -> None:
    assert sorted(turns({"a": ids("a", 9), "b": ids("b", 9)}, {}, (), room=6)) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert sorted(turns({"a": ids("a", 9), "b": ids("b", 9)}, {"a": 2}, (), room=4)) == ["a0", "b0", "b1", "b2"]


def test_a_tenant_has_so_many_at_a_time_and_one_that_fails_fewer() -> None:
    found = turns({"a": ids("a", 20), "b": ids("b", 20)}, {}, {"b"}, room=100)
    assert [sum(each.startswith(tenant) for each in found) for tenant in "ab"] == [OF_TENANT, OF_FAILING_TENANT]
    assert turns({"a": ids("a", 20)}, {"a": OF_TENANT}, (), room=100) == []


def test_without_room_or_anything_due_none_begins() -> None:
    assert turns({"a": ["a0"]}, {}, (), room=0) == []
    assert turns({}, {}, (), room=9) == []
