"""Usage of tenants that are followed, as events of their feeds: read from the store of all usage, which the tenants do not see."""

from __future__ import annotations

import logging

from control_plane.core.errors import StoreUnavailable
from control_plane.events.domain.cloud_event import USAGE, usage_fields
from control_plane.events.tenant_feeds import TenantFeeds
from control_plane.events.tenant_tap import text_of
from control_plane.metering.ports import UsageStore

_log = logging.getLogger(__name__)

_PAGE = 200


class TenantUsage:
    """Reader of the store's usage records, for as long as any tenant is followed."""

    def __init__(self, store: UsageStore, feeds: TenantFeeds) -> None:
        self._store = store
        self._feeds = feeds
        self._after: int | None = None
        """Number of the last record that was read; None while no tenant is followed."""

    async def look(self) -> None:
        """Publish the records since the last look. What the store does not tell now comes later."""
        try:
            await self._look()
        except StoreUnavailable as exc:
            _log.debug("usage is not told to tenants for now: %s", exc)

    async def _look(self) -> None:
        if not self._feeds.tenants:
            self._after = None
            return
        newest = await self._store.newest_record()
        if self._after is None or newest < self._after:  # a store that was begun anew
            self._after = newest
            return
        while self._after < newest and (found := await self._store.recorded(self._after, limit=_PAGE)):
            self._after = found[-1].number
            for record in found:
                if record.key.tenant in self._feeds.tenants:
                    self._feeds.publish(record.key.tenant, USAGE, record.at_s, text_of(usage_fields(record)).encode())
