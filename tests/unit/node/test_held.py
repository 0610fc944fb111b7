from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import partial

import pytest

from control_plane.concurrency.task_owner import TaskOwner
from control_plane.core.errors import UpstreamUnavailable
from control_plane.node.held import HeldContext
from tests.aio import run


def test_one_that_is_given_up_before_its_task_begins_is_refused() -> None:
    """As when a gateway's messages to prepare a load and to leave it come in one packet."""

    async def main() -> None:
        tasks, held = TaskOwner("no tasks"), HeldContext[None](nullcontext())
        async with tasks.open():
            entering = asyncio.get_running_loop().create_task(held.enter(tasks, name="held"))
            asyncio.get_running_loop().call_soon(partial(held.leave, is_well=False))  # after `enter` has begun, before its task does
            with pytest.raises(UpstreamUnavailable, match="given this up"):
                await asyncio.wait_for(entering, 5.0)

    run(main())
