"""Lookups by the machine's own configuration, where it has no more threads for them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from control_plane.jobs.webhooks.adapters.system_resolver import _MOST, SystemResolver


async def test_lookups_that_get_no_thread_find_nothing_and_hold_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = SystemResolver()

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as machine:
        machine.setattr(threading.Thread, "start", none_left)
        async with asyncio.timeout(30.0):
            assert [list(await resolver.addresses("localhost")) for _ in range(_MOST + 1)] == [[]] * (_MOST + 1)
    assert set(await resolver.addresses("localhost")) & {"127.0.0.1", "::1"}
