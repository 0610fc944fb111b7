"""Requests that workers tell of while somebody reads them."""

from __future__ import annotations

import pytest

from control_plane.workers.messages.from_workers import RequestsEnded
from control_plane.workers.messages.to_workers import WatchRequests
from tests.aio import settle
from tests.unit.workers.workers_bench import running

pytestmark = pytest.mark.virtual_time


async def test_all_workers_watch_while_somebody_reads_and_tell_what_has_ended() -> None:
    async with running(2) as bench:
        told: list[bytes] = []
        bench.workers.requests_ended = told.extend
        bench.workers.watch_requests(True)
        assert [worker.messages_of(WatchRequests) for worker in bench.started] == [[WatchRequests(True)]] * 2
        bench.started[1].say(RequestsEnded(['{"id": "1"}']))
        await settle()
        assert told == [b'{"id": "1"}']
        bench.workers.watch_requests(False)
        assert bench.started[0].messages_of(WatchRequests)[-1] == WatchRequests(False)
