from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.admission.domain.fair_queue import PASSED_OVER, FairQueue, QueueLimits, Ticket
from tests.unit.admission.domain.fair_queues import PLENTY, backlogs_of_tenants, costs, queue_of, ticket, weights


def order(tickets: Iterable[Ticket]) -> str:
    """Serve so many items and return their tenants in order."""
    queue, by_item = queue_of(tickets)
    return "".join(by_item[queue.pop()].tenant for _ in range(len(queue)))


class TestTenants:
    @pytest.mark.parametrize(
        ("tickets", "served"),
        [
            pytest.param([ticket("a"), ticket("a"), ticket("b"), ticket("b")], "abab", id="turns"),
            pytest.param([ticket("a")] * 5 + [ticket("b")], "abaaaa", id="who came late is not behind a flood"),
            pytest.param([ticket("a", weight=2)] * 4 + [ticket("b")] * 2, "ababaa", id="twice the weight, twice the turns"),
            pytest.param([ticket("a", cost=3)] * 2 + [ticket("b")] * 6, "abbbabbb", id="thrice the cost, a third of the turns"),
            pytest.param(
                [ticket("a", lane=0)] * 3 + [ticket("a", lane=4)] * 3 + [ticket("b")] * 3, "abababaaa", id="two lanes, no more turns"
            ),
        ],
    )
    def test_order(self, tickets: list[Ticket], served: str) -> None:
        assert order(tickets) == served

    def test_one_who_was_away_has_saved_nothing_up(self) -> None:
        queue, by_item = queue_of([ticket("a")] * 100)
        for _ in range(50):
            queue.pop()
        for item in range(100, 140):
            by_item[item] = ticket("b")
            queue.push(item, by_item[item])
        assert Counter(by_item[queue.pop()].tenant for _ in range(20)) == {"a": 10, "b": 10}

    def test_one_who_leaves_and_returns_owes_what_it_got(self) -> None:
        queue, by_item = queue_of([ticket("a")] * 20 + [ticket("b", cost=10)])
        assert [by_item[queue.pop()].tenant for _ in range(2)] == ["a", "b"]
        by_item[21] = ticket("b", cost=10)
        queue.push(21, by_item[21])
        assert [by_item[queue.pop()].tenant for _ in range(10)].index("b") == 9

    def test_it_owes_it_also_when_higher_priorities_have_had_their_turns_meanwhile(self) -> None:
        queue, by_item = queue_of([ticket("a", cost=20), ticket("a", cost=20), ticket("b", cost=10)])
        assert [queue.pop() for _ in range(2)] == [0, 2]
        queue.push(3, ticket("high", priority=1))
        assert queue.pop() == 3
        for item in range(10, 40):
            by_item[item] = ticket("b")
            queue.push(item, by_item[item])
        assert [by_item[queue.pop()].tenant for _ in range(15)].index("a") == 10

    def test_one_whose_requests_are_withdrawn_pays_nothing_for_them(self) -> None:
        queue, by_item = queue_of([ticket("a")] * 3 + [ticket("b", cost=1000), ticket("b")])
        queue.remove(3)
        assert [by_item[queue.pop()].tenant for _ in range(2)] == ["a", "b"]

    def test_a_new_weight_holds_for_what_waits_as_well(self) -> None:
        queue, by_item = queue_of([ticket("a")] * 30 + [ticket("b")] * 30 + [ticket("b", weight=9)])
        assert Counter(by_item[queue.pop()].tenant for _ in range(20))["b"] == 18


@given(backlogs_of_tenants(), st.data())
def test_over_any_time_in_which_two_wait_they_get_by_weight_the_same_within_one_request_each(
    backlogs: list[list[Ticket]], data: st.DataObject
) -> None:
    queue, by_item = queue_of(each for backlog in backlogs for each in backlog)
    for item in data.draw(st.sets(st.sampled_from(sorted(by_item)), max_size=len(by_item) // 3)):
        queue.remove(item)
        del by_item[item]
    got: dict[str, float] = defaultdict(float)
    left = Counter(each.tenant for each in by_item.values())
    first, second = backlogs[0][0], backlogs[1][0]
    bound = sum(max(each.cost for each in backlog) / backlog[0].weight for backlog in backlogs[:2])
    differences = [0.0]
    while left[first.tenant] and left[second.tenant]:
        each = by_item[queue.pop()]
        left[each.tenant] -= 1
        got[each.tenant] += each.cost
        differences.append(got[first.tenant] / first.weight - got[second.tenant] / second.weight)
    assert max(differences) - min(differences) <= bound * 1.000001


@given(
    flood=st.lists(st.tuples(st.floats(0.5, 4), st.floats(1, 10)), min_size=1, max_size=4),
    weight=st.floats(0.5, 4),
    own_costs=st.lists(st.floats(1, 10), min_size=1, max_size=5),
)
@settings(max_examples=50)
def test_a_tenant_within_its_share_waits_for_one_request_of_each_other_at_most(
    flood: list[tuple[float, float]], weight: float, own_costs: list[float]
) -> None:
    queue, waiting, pushed = FairQueue[tuple[str, int]](PLENTY), Counter[str](), 0
    others = {f"flood {number}": ticket(f"flood {number}", weight=each, cost=cost) for number, (each, cost) in enumerate(flood)}
    weight_of_all, one_of_each = weight + sum(each.weight for each in others.values()), sum(each.cost for each in others.values())

    def serve() -> str:
        """Serve one request, with five requests of each flooding tenant in the queue at all times."""
        nonlocal pushed
        for name, each in others.items():
            while waiting[name] < 5:
                waiting[name], pushed = waiting[name] + 1, pushed + 1
                queue.push((name, pushed), each)
        tenant, _ = queue.pop()
        waiting[tenant] -= 1
        return tenant

    for _ in range(20):
        serve()
    for number, cost in enumerate(own_costs):
        queue.push(("own", number), ticket("own", weight=weight, cost=cost))
        passed = 0
        while serve() != "own":
            passed += 1
        assert passed <= len(flood)
        done = cost
        while done < cost * weight_of_all / weight + one_of_each:
            done += others[serve()].cost


class TestPriorities:
    def test_the_higher_is_next_and_passes_over_nine_times_the_cost_of_the_lower(self) -> None:
        tickets = [ticket("l")] * 3 + [ticket("h", priority=1)] * 20
        assert order(tickets) == "h" * 9 + "l" + "h" * 9 + "l" + "hh" + "l"

    def test_each_passes_over_those_below_it(self) -> None:
        tickets = [ticket("l"), ticket("m", priority=5)] * 2 + [ticket("h", priority=9)] * 20
        assert order(tickets) == "h" * 9 + "lm" + "h" * 8 + "l" + "h" + "m" + "hh"

    def test_one_large_request_lets_as_many_small_ones_follow(self) -> None:
        tickets = [ticket("l")] * 12 + [ticket("h", priority=1, cost=90)] * 3
        assert order(tickets) == "h" + "l" * 10 + "h" + "ll" + "h"

    def test_one_that_has_just_come_is_not_due(self) -> None:
        queue, _ = queue_of([ticket("h", priority=1)] * 100)
        for _ in range(50):
            queue.pop()
        queue.push(1000, ticket("l"))
        assert 1000 not in [queue.pop() for _ in range(9)]
        assert queue.pop() == 1000

    @given(
        high=st.lists(costs, min_size=50, max_size=200),
        low=st.lists(costs, min_size=1, max_size=20),
        middle=st.lists(costs, max_size=20),
    )
    def test_none_is_passed_over_for_longer_than_it_is_told(self, high: list[float], low: list[float], middle: list[float]) -> None:
        queue, by_item = queue_of(
            [ticket("h", priority=2, cost=cost) for cost in high]
            + [ticket("m", priority=1, cost=cost) for cost in middle]
            + [ticket("l", priority=0, cost=cost) for cost in low]
        )
        passed, low_left = 0.0, len(low)
        while low_left:
            each = by_item[queue.pop()]
            if each.tenant == "l":
                assert passed <= (PASSED_OVER * each.cost + max(high + middle)) * 1.000001
                passed, low_left = 0.0, low_left - 1
            else:
                passed += each.cost

    @given(high=st.lists(costs, min_size=50, max_size=200), low=st.lists(costs, min_size=50, max_size=200))
    def test_the_highest_keeps_nine_tenths(self, high: list[float], low: list[float]) -> None:
        queue, by_item = queue_of([ticket("h", priority=1, cost=cost) for cost in high] + [ticket("l", cost=cost) for cost in low])
        left, got = len(high), {"h": 0.0, "l": 0.0}
        while left:
            each = by_item[queue.pop()]
            left -= each.tenant == "h"
            got[each.tenant] += each.cost
            assert got["l"] <= got["h"] / PASSED_OVER + 1e-6


class TestPassingBy:
    """Requests beside a flood of tenant `a`, at a model with four slots."""

    def passed(self, queue: FairQueue[int], each: Ticket) -> int:
        count = 0
        while queue.bypass(each, 4):
            count += 1
        return count

    @pytest.mark.parametrize(
        ("flood", "own", "passed"),
        [
            pytest.param(ticket("a"), ticket("b"), 2, id="half the slots"),
            pytest.param(ticket("a", cost=0.1), ticket("b", cost=10), 2, id="whatever they cost"),
            pytest.param(ticket("a"), ticket("b", weight=3), 3, id="three quarters"),
            pytest.param(ticket("a", weight=99), ticket("b"), 1, id="one at least"),
            pytest.param(ticket("a"), ticket("a"), 0, id="nobody passes its own"),
            pytest.param(ticket("a"), ticket("b", priority=-1), 0, id="nor a higher priority"),
            pytest.param(ticket("a"), ticket("b", priority=1), 0, id="nor a lower: it is next there anyway"),
        ],
    )
    def test_a_tenants_part_goes_on_at_once(self, flood: Ticket, own: Ticket, passed: int) -> None:
        queue, _ = queue_of([flood] * 20)
        assert self.passed(queue, own) == passed
        assert len(queue) == 20

    def test_what_has_passed_is_paid_for(self) -> None:
        queue, by_item = queue_of([ticket("a")] * 20)
        assert self.passed(queue, ticket("b", cost=3)) == 2
        by_item[20] = ticket("b", cost=3)
        queue.push(20, by_item[20])
        assert [by_item[queue.pop()].tenant for _ in range(10)].index("b") == 6

    def test_who_has_passed_may_again_when_as_much_was_done_for_the_others(self) -> None:
        queue, _ = queue_of([ticket("a")] * 20)
        assert self.passed(queue, ticket("b")) == 2
        for passed in (0, 1, 1, 1):  # the first is the request whose start the others are reckoned from
            queue.pop()
            assert self.passed(queue, ticket("b")) == passed

    def test_several_that_pass_share_the_slots(self) -> None:
        queue, _ = queue_of([ticket("a")] * 20)
        assert sum(self.passed(queue, ticket(f"visitor {number}")) for number in range(3)) == 2 + 2 + 1
        assert self.passed(queue, ticket("visitor 0")) == 0

    def test_those_below_are_passed_over_by_it(self) -> None:
        queue, _ = queue_of([ticket("l")] * 2 + [ticket("h", priority=1)] * 20)
        passed = sum(queue.bypass(ticket(f"v {number}", priority=1), 4) for number in range(12))
        assert passed == PASSED_OVER  # then the lower priority is due
        assert queue.pop() == 0

    @given(st.lists(st.tuples(st.booleans(), costs), max_size=150), weights, st.integers(1, 16))
    def test_nobody_gets_more_than_its_share_and_its_part_of_the_slots(
        self, each: list[tuple[bool, float]], weight: float, slots: int
    ) -> None:
        queue, by_item = queue_of(ticket("a", cost=1.0 + number % 3) for number in range(len(each) + 1))
        got = {"a": 0.0, "b": 0.0}
        for passes, cost in each:
            if not passes:
                got["a"] += by_item[queue.pop()].cost
            elif queue.bypass(ticket("b", weight=weight, cost=cost), slots):
                got["b"] += cost / weight
                assert got["b"] <= got["a"] + cost * slots / (1.0 + weight) + cost / weight + 1e-6

    def test_nothing_is_left_of_those_who_only_passed(self) -> None:
        queue, _ = queue_of([ticket("a")] * 3000)
        for number in range(1000):
            queue.bypass(ticket(f"visitor {number}", weight=2.0), 4)
            queue.pop()
            queue.pop()
        (level,) = queue._levels
        assert len(level.flows) <= 4
        assert level._open_weights == pytest.approx(sum(flow.weight for flow in level.flows.values()))


class TestRoom:
    LIMITS = QueueLimits(max_waiting=6, max_waiting_per_tenant=4)

    def test_a_tenants_own_bound_refuses_its_newest(self) -> None:
        queue, _ = queue_of([ticket("a")] * 4, self.LIMITS)
        assert queue.push(99, ticket("a")) == 99
        assert len(queue) == 4

    def test_a_tenants_own_bound_refuses_its_newest_in_the_longest_lane(self) -> None:
        queue, _ = queue_of([ticket("a", lane=4)] * 3, QueueLimits(max_waiting=10, max_waiting_per_tenant=3))
        assert queue.push(3, ticket("a", lane=0)) == 2
        assert queue.push(4, ticket("a", lane=4)) == 4
        assert queue.push(5, ticket("a", lane=0)) == 5

    def test_a_full_queue_refuses_the_newest_of_its_own_longest_lane(self) -> None:
        queue, _ = queue_of([ticket("a", lane=4)] * 3, QueueLimits(max_waiting=3, max_waiting_per_tenant=10))
        assert queue.push(3, ticket("a", lane=0)) == 2

    def test_a_full_queue_refuses_the_newest_of_the_longest_for_one_of_another_tenant(self) -> None:
        queue, _ = queue_of([ticket("a")] * 4 + [ticket("b")] * 2, self.LIMITS)
        assert queue.push(99, ticket("c")) == 3
        assert queue.push(100, ticket("c")) == 2
        assert queue.push(101, ticket("c")) == 101  # no longer than the others' now
        assert sorted(queue.pop() for _ in range(6)) == [0, 1, 4, 5, 99, 100]

    def test_what_is_long_is_so_for_its_weight(self) -> None:
        queue, _ = queue_of([ticket("a", weight=4)] * 4 + [ticket("b")] * 2, self.LIMITS)
        assert queue.push(99, ticket("c")) == 5
        assert queue.push(100, ticket("b")) == 100

    def test_of_equally_long_ones_the_one_that_comes_is_refused(self) -> None:
        queue, _ = queue_of([ticket("a"), ticket("b")] * 2 + [ticket("c"), ticket("d")], self.LIMITS)
        assert queue.push(99, ticket("d")) == 99

    def test_priorities_share_the_room(self) -> None:
        queue, _ = queue_of([ticket("a", priority=1)] * 4 + [ticket("b")] * 2, self.LIMITS)
        assert queue.push(99, ticket("c", priority=2)) == 3
        assert queue.pop() == 99

    @given(
        each=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=120),
        weight=st.lists(weights, min_size=4, max_size=4),
        room=st.integers(1, 20),
    )
    def test_no_flood_takes_the_room_of_a_tenant_that_keeps_to_its_share(
        self, each: list[tuple[int, bool]], weight: list[float], room: int
    ) -> None:
        queue, tenants, waiting = FairQueue[int](QueueLimits(room, room)), dict[int, int](), Counter[int]()
        share = [room * one / sum(weight) for one in weight]
        for item, (tenant, takes) in enumerate(each):
            if takes and queue:
                waiting[tenants[queue.pop()]] -= 1
            tenants[item] = tenant
            refused = queue.push(item, ticket(str(tenant), weight=weight[tenant]))
            waiting[tenant] += 1
            if refused is not None:
                assert waiting[tenants[refused]] > share[tenants[refused]] * 0.999999
                waiting[tenants[refused]] -= 1
            assert len(queue) == waiting.total() <= room


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("push"),
                st.builds(
                    Ticket, tenant=st.sampled_from("abc"), weight=weights, priority=st.integers(0, 2), cost=costs, lane=st.integers(0, 2)
                ),
            ),
            st.tuples(st.just("remove"), st.integers(0, 10)),
            st.tuples(st.just("pop"), st.just(0)),
        ),
        max_size=150,
    )
)
def test_whatever_comes_and_leaves_none_is_lost_doubled_or_overtaken_by_its_own(events: list[tuple[str, Ticket | int]]) -> None:
    queue, waiting, number = FairQueue[int](QueueLimits(max_waiting=12, max_waiting_per_tenant=6)), dict[int, Ticket](), 0
    for verb, argument in events:
        if isinstance(argument, Ticket):
            waiting[number] = argument
            refused = queue.push(number, argument)
            number += 1
            if refused is not None:
                del waiting[refused]
        elif verb == "pop" and waiting:
            item = queue.pop()
            each = waiting.pop(item)
            assert not [other for other in waiting if other < item and _same_line(waiting[other], each)]
        elif verb == "remove" and waiting:
            item = sorted(waiting)[argument % len(waiting)]
            assert queue.remove(item)
            assert not queue.remove(item)
            del waiting[item]
        assert len(queue) == len(waiting)
        assert queue.cost == pytest.approx(sum(each.cost for each in waiting.values()), abs=1e-6)
    assert sorted(queue.pop() for _ in range(len(queue))) == sorted(waiting)
    assert queue.cost == 0


def _same_line(one: Ticket, other: Ticket) -> bool:
    return (one.tenant, one.priority, one.lane) == (other.tenant, other.priority, other.lane)


def test_a_tenant_that_comes_once_leaves_nothing_behind_though_the_queue_never_empties() -> None:
    queue = FairQueue[str](PLENTY)
    for number in range(2000):
        queue.push(f"resident {number}", ticket("resident"))
    for number in range(1000):
        queue.push(f"visitor {number}", ticket(f"visitor {number}"))
        queue.pop()
        queue.pop()
    assert len(queue) == 1000
    assert sum(len(level.flows) for level in queue._levels) <= 4
