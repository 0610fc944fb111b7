from __future__ import annotations

from control_plane.metering.domain.tenant_units import TenantUnits
from control_plane.telemetry.request_counts import OTHER


def test_units_add_up_by_tenant() -> None:
    units = TenantUnits()
    for tenant, used in (("a", 1.0), ("b", 2.0), ("a", 0.5)):
        units.add(tenant, used)
    assert units.used == {"a": 1.5, "b": 2.0}


def test_further_tenants_are_counted_together_and_nobody_moves() -> None:
    units = TenantUnits(most=2)
    for tenant in ("a", "b", "c", "d", "a"):
        units.add(tenant, 1.0)
    assert units.used == {"a": 2.0, "b": 1.0, OTHER: 2.0}


def test_a_tenant_that_is_known_has_its_place_before_it_uses_any() -> None:
    units = TenantUnits(most=1)
    units.know("a")
    units.know("b")
    units.add("b", 1.0)
    units.add("a", 1.0)
    assert units.used == {"a": 1.0, OTHER: 1.0}


def test_a_copy_is_added_to_alone() -> None:
    units = TenantUnits()
    units.add("a", 1.0)
    copied = units.copy()
    copied.add("a", 1.0)
    assert (units.used, copied.used) == ({"a": 1.0}, {"a": 2.0})
