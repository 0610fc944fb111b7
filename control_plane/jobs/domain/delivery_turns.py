"""Whose deliveries are made next: pure, called by `jobs/deliveries`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

OF_TENANT = 8
"""Deliveries of a tenant at a time."""
OF_FAILING_TENANT = 1
"""Deliveries at a time of a tenant whose last one has failed: each may take as long as an exchange may."""


def turns(due: Mapping[str, Sequence[str]], under_way: Mapping[str, int], failing: Collection[str], *, room: int) -> list[str]:
    """Return the ids of the jobs whose delivery begins now, by the tenant with the fewest under way, `room` at most."""
    begun = {tenant: under_way.get(tenant, 0) for tenant in due}
    left: dict[str, Iterator[str]] = {tenant: iter(ids) for tenant, ids in due.items()}
    found: list[str] = []
    while left and len(found) < room:
        tenant = min(left, key=lambda each: begun[each])
        most = OF_FAILING_TENANT if tenant in failing else OF_TENANT
        job_id = next(left[tenant], None) if begun[tenant] < most else None
        if job_id is None:
            del left[tenant]
            continue
        found.append(job_id)
        begun[tenant] += 1
    return found
