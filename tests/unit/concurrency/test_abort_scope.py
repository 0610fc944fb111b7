"""A wait that somebody else ends with an error."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.concurrency.abort_scope import AbortScope

pytestmark = pytest.mark.virtual_time


async def test_whoever_waits_within_it_gets_the_first_error() -> None:
    scope, loop = AbortScope(), asyncio.get_running_loop()
    loop.call_later(1.0, scope.abort, ValueError("first"))
    loop.call_later(1.0, scope.abort, ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        async with scope:
            await asyncio.sleep(10.0)
    assert loop.time() == 1.0


async def test_one_that_nobody_aborts_changes_nothing() -> None:
    async with AbortScope():
        await asyncio.sleep(1.0)
    with pytest.raises(KeyError):
        async with AbortScope():
            raise KeyError


@pytest.mark.parametrize("is_aborted_too", [False, True])
async def test_a_time_out_or_a_cancellation_from_elsewhere_stays_what_it_is(is_aborted_too: bool) -> None:
    scope, loop = AbortScope(), asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        async with AbortScope():
            raise TimeoutError
    if is_aborted_too:
        loop.call_later(1.0, scope.abort, ValueError("in the same turn"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0), scope:
            await asyncio.sleep(10.0)
