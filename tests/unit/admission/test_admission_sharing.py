"""What one tenant's flood does to another that stays within its share of a saturated model (simulated by
`tests/sharing`).
"""

from __future__ import annotations

import pytest

from control_plane.objects.domain.tenant import Tenant
from tests.sharing import CAPACITY, UNIT_S, Cost, Sender, equal, large, mixed, share_a_model

FLOOD = 50
BOUND = 1.5
"""By how much the flood may multiply the other tenant's 99th percentile."""


@pytest.mark.parametrize(
    ("flood_cost", "cost", "weight"),
    [
        pytest.param(equal, equal, 1.0, id="equal costs"),
        pytest.param(equal, equal, 4.0, id="equal costs, four times the weight"),
        pytest.param(mixed, mixed, 1.0, id="mixed costs"),
        pytest.param(large, equal, 1.0, id="a flood of large ones"),
    ],
)
def test_a_flood_moves_anothers_p99_by_half_at_most(flood_cost: Cost, cost: Cost, weight: float) -> None:
    clients, others = max(CAPACITY, round(CAPACITY * weight)), max(CAPACITY, round(CAPACITY / weight))
    quiet = Sender("quiet", Tenant("quiet", weight=weight), cost, clients)
    loud = Tenant("loud")
    fair = share_a_model(quiet, Sender("loud", loud, flood_cost, others), seconds=3)
    flooded = share_a_model(quiet, Sender("loud", loud, flood_cost, others * FLOOD), seconds=3)
    assert flooded["quiet"].p99_wait_s <= BOUND * fair["quiet"].p99_wait_s
    total = flooded["quiet"].units + flooded["loud"].units
    assert flooded["quiet"].units / total == pytest.approx(weight / (1 + weight), abs=0.03)


def test_without_fair_turns_it_would_move_it_far_more() -> None:
    """The same senders as one tenant, without fair queuing between them: shows that the simulation
    can fail.
    """
    both = Tenant("both")
    quiet = Sender("quiet", both, equal, CAPACITY)
    fair = share_a_model(quiet, Sender("loud", both, equal, CAPACITY), seconds=3)
    flooded = share_a_model(quiet, Sender("loud", both, equal, CAPACITY * FLOOD), seconds=3)
    assert flooded["quiet"].p99_wait_s > 10 * fair["quiet"].p99_wait_s


def test_so_it_is_with_requests_that_come_at_random_at_the_rate_of_the_share() -> None:
    """Requests come at exactly the rate of the share: below it there is hardly a queue without the flood to
    compare with.
    """
    rate = CAPACITY / (2 * 9.5 * UNIT_S)  # the mean of mixed costs
    quiet = Sender("quiet", Tenant("quiet"), mixed, requests_per_s=rate)
    fair = share_a_model(quiet, Sender("loud", Tenant("loud"), mixed, requests_per_s=rate), seconds=1.5)
    flooded = share_a_model(quiet, Sender("loud", Tenant("loud"), mixed, requests_per_s=rate * FLOOD / 5), seconds=1.5)
    assert flooded["quiet"].p99_latency_s <= BOUND * fair["quiet"].p99_latency_s
    assert flooded["quiet"].refused == 0 < flooded["loud"].refused
