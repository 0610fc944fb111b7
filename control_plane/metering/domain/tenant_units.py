"""Compute units by tenant for the metrics page, with a bound on the tenants that are told apart. Pure; used by
`metering/metering`.
"""

from __future__ import annotations

from copy import copy

from control_plane.telemetry.request_counts import OTHER

_MOST_TENANTS = 10_000
"""An issuer of tokens may name as many tenants as it likes."""


class TenantUnits:
    """Sums of compute units by tenant; further tenants are counted together, as `OTHER`."""

    def __init__(self, *, most: int = _MOST_TENANTS) -> None:
        self._most = most
        self._sums: dict[str, float] = {}

    def know(self, tenant: str) -> None:
        """Give a tenant a sum of its own while there is room, so that what it has used never moves to another sum."""
        if len(self._sums) < self._most:
            self._sums.setdefault(tenant, 0.0)

    def add(self, tenant: str, units: float) -> None:
        """Add to the sum of a tenant."""
        if tenant not in self._sums:
            self.know(tenant)
        name = tenant if tenant in self._sums else OTHER
        self._sums[name] = self._sums.get(name, 0.0) + units

    def copy(self) -> TenantUnits:
        """Return a copy to add to."""
        copied = copy(self)
        copied._sums = self._sums.copy()
        return copied

    @property
    def used(self) -> dict[str, float]:
        """The sums of tenants that have used any."""
        return {tenant: units for tenant, units in self._sums.items() if units}
