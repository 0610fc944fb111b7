from __future__ import annotations

from control_plane.fleet.adapters.local_lease import LocalLease
from control_plane.fleet.domain.leadership.lease import Lease


async def test_it_is_granted_whenever_it_is_asked_for_and_each_time_with_a_higher_token() -> None:
    store = LocalLease()
    for token in (1, 2, 3):
        seen = await store.read()
        assert seen.is_released
        lease = await store.acquire(seen, holder="me", ttl_s=6.0)
        assert lease == Lease(token, "me", 6.0)
        assert await store.renew(lease) == lease
    await store.release(lease)
    await store.close()
