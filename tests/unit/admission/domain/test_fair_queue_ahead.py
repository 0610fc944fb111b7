"""How much is served before a request that comes now."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.admission.domain.fair_queue import Ticket
from tests.unit.admission.domain.fair_queues import backlogs_of_tenants, costs, queue_of, ticket


class TestAhead:
    @pytest.mark.parametrize(
        ("tickets", "expected"),
        [
            pytest.param([], 0.0, id="nobody"),
            pytest.param([ticket("a", cost=3)] * 4, 12.0, id="one's own"),
            pytest.param([ticket("b", cost=3)] * 4, 1.0, id="another's, of which as much is done meanwhile as of one's own"),
            pytest.param([ticket("b", cost=0.25)] * 2, 0.5, id="no more than there is"),
            pytest.param([ticket("b", cost=3, priority=1)] * 4, 12.0, id="all of a higher priority"),
            pytest.param([ticket("b", cost=3, priority=-1)] * 4, 0.0, id="nothing of a lower"),
            pytest.param([ticket("b", cost=3, weight=5)] * 4, 5.0, id="of a weightier tenant more"),
        ],
    )
    def test_estimate(self, tickets: list[Ticket], expected: float) -> None:
        queue, _ = queue_of(tickets)
        assert queue.ahead(ticket("a", cost=1.0)) == pytest.approx(expected)

    def test_what_the_other_lanes_of_a_tenant_get_meanwhile_counts(self) -> None:
        queue, _ = queue_of([ticket("a", lane=4)] * 4 + [ticket("a", lane=0)])
        assert queue.ahead(ticket("a", lane=4)) == pytest.approx(8.0)

    def test_who_has_left_slows_nobody_down(self) -> None:
        queue, _ = queue_of([ticket("b", weight=5), ticket("b", weight=5), ticket("c", cost=3), ticket("c", cost=3)])
        queue.remove(0)
        queue.remove(1)
        assert queue.ahead(ticket("a")) == pytest.approx(1.0)

    @given(backlogs_of_tenants(), st.integers(0, 40), costs)
    def test_it_is_what_is_done_before_within_one_request_of_each(self, backlogs: list[list[Ticket]], served: int, cost: float) -> None:
        queue, by_item = queue_of(each for backlog in backlogs for each in backlog)
        for _ in range(min(served, len(queue) - 1)):
            queue.pop()
        new = ticket("a", weight=backlogs[0][0].weight, cost=cost)
        estimate, done = queue.ahead(new), 0.0
        queue.push(-1, new)
        while (item := queue.pop()) != -1:
            done += by_item[item].cost
        one_of_each = sum(max(each.cost for each in backlog) for backlog in backlogs)
        assert done <= estimate + one_of_each + 1e-6

    @pytest.mark.parametrize("goes_on", [True, False])
    def test_one_whose_requests_hardly_wait_counts_by_what_it_gets(self, goes_on: bool) -> None:
        """Its next ones will be served meanwhile, though none waits: half of all was taken for the whole."""
        queue, _ = queue_of([ticket("a")] * 200)
        for number in range(60):
            if number < 5 or goes_on:
                queue.push(-1 - number, ticket("hasty"))
                queue.pop()
            queue.pop()
        waiting = len(queue)
        assert queue.ahead(ticket("a")) == pytest.approx(2 * waiting if goes_on else waiting, rel=0.05)

    def test_one_that_seldom_asks_counts_little(self) -> None:
        queue, _ = queue_of([ticket("a")] * 300)
        for number in range(200):
            if number % 20 == 0:
                queue.push(-1 - number, ticket("seldom"))
            queue.pop()
        assert queue.ahead(ticket("a")) <= 1.15 * len(queue)
