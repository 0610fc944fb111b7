"""How often tickets without a broker look at the store; what they are is in `tests/contract/jobs/test_job_queue`."""

from __future__ import annotations

import pytest

from control_plane.jobs.adapters.polled_tickets import PolledTickets


class Ready:
    """A store that counts its jobs that are ready, and how often it was asked."""

    def __init__(self, count: int) -> None:
        self.count, self.looks = count, 0

    async def ready(self, now_s: float, *, limit: int) -> int:
        self.looks += 1
        return min(self.count, limit)


async def test_one_look_is_enough_for_several_turns() -> None:
    store = Ready(40)
    queue = PolledTickets(store, is_only=True)  # type: ignore[arg-type]  # as much of a store as it needs
    for _ in range(5):
        tickets = await queue.take(8)
        assert len(tickets) == 8
        store.count -= 8
        for ticket in tickets:
            ticket.claimed()
    assert store.looks == 1


@pytest.mark.virtual_time
async def test_what_others_have_claimed_is_looked_at_anew() -> None:
    store = Ready(40)
    queue = PolledTickets(store, is_only=True)  # type: ignore[arg-type]
    (ticket,) = await queue.take()
    store.count = 1  # others have claimed the rest, and this ticket found none
    await ticket.ack()
    (ticket,) = await queue.take(8)
    assert store.looks == 2
