from __future__ import annotations

from datetime import UTC, datetime

import pytest

from control_plane.admission.rate_leases import RateLeases
from control_plane.admission.tenant_limits import ShedCounts, TenantAccount, TenantLimits
from control_plane.core.errors import LimitExceeded
from control_plane.objects.domain.tenant import Tenant
from control_plane.telemetry.shed_reason import ShedReason

NOON_S = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
TODAY, TOMORROW, YESTERDAY = "2026-03-01", "2026-03-02", "2026-02-28"


class Bench:
    """Tenant limits whose tenants can be changed, with clocks that stand still."""

    def __init__(self, *tenants: Tenant) -> None:
        self.tenants = {tenant.name: tenant for tenant in tenants}
        self.now_s, self.today_s, self.sheds = 1000.0, NOON_S, ShedCounts()
        leases = RateLeases(now_s=lambda: self.now_s)  # of the only process
        self.limits = TenantLimits(self, self.sheds, leases=leases, today_s=lambda: self.today_s)

    def come(self, name: str = "t") -> TenantAccount:
        """Admit a request, which stays under way."""
        account = self.limits.account(name)
        self.limits.check(account)
        account.in_flight += 1
        return account

    def refused(self, name: str = "t") -> LimitExceeded:
        with pytest.raises(LimitExceeded) as refusal:
            self.come(name)
        return refusal.value

    def admitted(self, name: str = "t", *, most: int = 1000) -> int:
        """Return how many requests at once are admitted before one is refused; it tries `most` at most."""
        for count in range(most):
            try:
                self.come(name)
            except LimitExceeded:
                return count
        return most

    def use(self, units: float, name: str = "t") -> None:
        """Admit and end a request of so many compute units."""
        account = self.come(name)
        account.in_flight -= 1
        account.units_ended += units


class TestRate:
    def test_a_burst_goes_through_and_then_the_rate(self) -> None:
        bench = Bench(Tenant("t", requests_per_s=10.0, burst=3))
        assert bench.admitted() == 3
        error = bench.refused()
        assert str(error) == "tenant 't' may send 10 requests per second, 3 at once"
        assert error.retry_after_s == pytest.approx(0.1)
        assert error.limits == (("RateLimit-Limit", "3"), ("RateLimit-Remaining", "0"), ("RateLimit-Reset", "1"))
        bench.now_s += 0.1
        assert bench.admitted() == 1
        assert bench.sheds == {("t", ShedReason.RATE): 3}

    def test_each_tenant_has_its_own(self) -> None:
        bench = Bench(Tenant("t", requests_per_s=1.0), Tenant("u", requests_per_s=1.0))
        assert [bench.admitted("t"), bench.admitted("u"), bench.admitted("t")] == [1, 1, 0]

    def test_without_a_burst_of_its_own_the_rate_says_all(self) -> None:
        bench = Bench(Tenant("t", requests_per_s=3.0))
        assert bench.admitted() == 3
        error = bench.refused()
        assert str(error) == "tenant 't' may send 3 requests per second"
        assert error.limits == (("RateLimit-Limit", "3"), ("RateLimit-Remaining", "0"), ("RateLimit-Reset", "1"))

    def test_a_part_of_it_is_enforced_where_there_are_several_processes(self) -> None:
        bench = Bench(Tenant("t", requests_per_s=10.0, burst=8), Tenant("u", requests_per_s=10.0, burst=8))
        bench.limits.set_shares({"t": 0.25}, other=0.5)
        assert [bench.admitted("t"), bench.admitted("u")] == [2, 4]

    def test_a_new_part_holds_at_once_for_who_has_been_here(self) -> None:
        bench = Bench(Tenant("t", requests_per_s=10.0, burst=8))
        bench.come()
        bench.limits.set_shares({"t": 0.5}, other=1.0)
        assert bench.admitted() == 3  # seven eighths of four

    def test_only_whose_part_is_another_one_has_new_limits(self) -> None:
        bench = Bench(Tenant("t", requests_per_s=10.0), Tenant("u", requests_per_s=10.0))
        bench.limits.set_shares({"t": 0.5}, other=0.25)
        same, other = bench.come("t"), bench.come("u")
        before = same.own_rate, other.own_rate
        bench.limits.set_shares({"t": 0.5, "u": 0.75}, other=0.25)
        assert bench.limits.account("t").own_rate is before[0], "nothing was computed anew"
        assert other.own_rate is before[1], "nor was anything for who has not asked since"
        rate = bench.limits.account("u").own_rate
        assert rate is not None
        assert rate.requests_per_s == 7.5

    def test_a_new_part_holds_for_an_account_that_somebody_holds(self) -> None:
        bench = Bench(Tenant("t", concurrency=8))
        held = bench.come()
        bench.limits.set_shares({"t": 0.125}, other=1.0)
        with pytest.raises(LimitExceeded):
            bench.limits.check(held)

    def test_what_another_limit_refuses_does_not_count_for_the_rate(self) -> None:
        bench = Bench(Tenant("t", requests_per_s=10.0, burst=2, concurrency=1))
        account = bench.come()
        assert bench.admitted() == 0
        account.in_flight -= 1
        assert bench.admitted() == 1
        assert bench.sheds == {("t", ShedReason.CONCURRENCY): 2}


class TestConcurrency:
    def test_who_has_as_many_under_way_waits_for_one_to_end(self) -> None:
        bench = Bench(Tenant("t", concurrency=2))
        account = bench.come()
        bench.come()
        error = bench.refused()
        assert str(error) == "tenant 't' may have 2 requests under way at a time"
        assert error.retry_after_s == 1.0
        assert error.limits == (("RateLimit-Limit", "2"), ("RateLimit-Remaining", "0"), ("RateLimit-Reset", "1"))
        account.in_flight -= 1
        assert bench.admitted() == 1

    @pytest.mark.parametrize(
        ("concurrency", "share", "expected"),
        [
            pytest.param(8, 0.3, 2, id="a part"),
            pytest.param(2, 0.1, 1, id="one at least in each process"),
            pytest.param(0, 0.5, 0, id="none is none everywhere"),
        ],
    )
    def test_of_several_processes_each_has_a_part(self, concurrency: int, share: float, expected: int) -> None:
        bench = Bench(Tenant("t", concurrency=concurrency))
        bench.limits.set_shares({"t": share}, other=1.0)
        assert bench.admitted() == expected


class TestQuota:
    def test_what_is_stored_and_what_came_since_use_it_up(self) -> None:
        bench = Bench(Tenant("t", daily_compute_units=100.0))
        bench.limits.set_spent(TODAY, {"t": 60.0})
        bench.use(39.0)
        bench.use(39.0)
        error = bench.refused()
        assert str(error) == "tenant 't' has used its 100 compute units of today (UTC)"
        assert error.retry_after_s == 43200.0
        assert error.limits == (("RateLimit-Limit", "100"), ("RateLimit-Remaining", "0"), ("RateLimit-Reset", "43200"))
        assert bench.sheds == {("t", ShedReason.QUOTA): 1}

    def test_new_sums_replace_what_ended_before_but_not_what_is_under_way(self) -> None:
        bench = Bench(Tenant("t", daily_compute_units=100.0))
        bench.use(50.0)
        account = bench.come()
        account.units_in_flight += 40.0
        bench.limits.set_spent(TODAY, {"t": 55.0})
        assert bench.admitted(most=1) == 1
        bench.limits.set_spent(TODAY, {"t": 60.0})
        bench.refused()

    def test_midnight_begins_anew(self) -> None:
        bench = Bench(Tenant("t", daily_compute_units=100.0))
        bench.limits.set_spent(TODAY, {"t": 60.0})
        bench.use(40.0)
        bench.today_s += 43199.0
        assert bench.refused().retry_after_s == 1.0
        bench.today_s += 1.0
        assert bench.admitted(most=1) == 1

    def test_sums_of_yesterday_that_come_late_say_nothing(self) -> None:
        bench = Bench(Tenant("t", daily_compute_units=100.0))
        bench.use(60.0)
        bench.limits.set_spent(YESTERDAY, {"t": 1000.0})
        bench.use(40.0)
        bench.refused()

    def test_sums_of_the_next_day_begin_it(self) -> None:
        bench = Bench(Tenant("t", daily_compute_units=100.0))
        bench.use(100.0)
        bench.limits.set_spent(TOMORROW, {"t": 10.0})
        assert bench.admitted(most=1) == 1

    def test_once_the_clock_is_put_back_the_day_that_it_went_ahead_to_is_not_counted_on(self) -> None:
        bench = Bench(Tenant("t", daily_compute_units=100.0))
        bench.today_s = NOON_S + 365 * 86400.0
        bench.limits.set_spent("2027-03-01", {})
        bench.use(100.0)
        bench.refused()
        bench.today_s = NOON_S
        bench.limits.set_spent(TODAY, {"t": 50.0})
        assert bench.admitted(most=1) == 1
        bench.limits.set_spent(TODAY, {"t": 100.0})
        bench.refused()

    def test_a_process_may_use_up_its_part_of_what_is_left(self) -> None:
        bench = Bench(Tenant("t", daily_compute_units=100.0))
        bench.limits.set_shares({"t": 0.25}, other=1.0)
        bench.limits.set_spent(TODAY, {"t": 60.0})
        bench.use(10.0)
        assert bench.refused().retry_after_s == 1.0

    def test_what_lasts_longest_is_told(self) -> None:
        bench = Bench(Tenant("t", requests_per_s=1.0, concurrency=1, daily_compute_units=100.0))
        bench.come().units_ended += 100.0
        assert bench.refused().retry_after_s == 43200.0


class TestTenants:
    def test_one_that_is_not_known_has_no_limits_and_a_plain_share(self) -> None:
        bench = Bench()
        account = bench.limits.account("")
        assert not account.is_limited
        assert account.tenant == Tenant("")

    def test_a_change_holds_from_the_next_request_on(self) -> None:
        bench = Bench(Tenant("t", concurrency=1))
        assert bench.admitted() == 1
        bench.tenants["t"] = Tenant("t", concurrency=3)
        assert bench.admitted() == 2
        del bench.tenants["t"]
        assert not bench.limits.account("t").is_limited

    def test_one_that_becomes_known_keeps_what_it_has_under_way(self) -> None:
        bench = Bench()
        bench.limits.account("t").in_flight += 2
        bench.tenants["t"] = Tenant("t", concurrency=3)
        assert bench.admitted() == 1

    def test_those_that_nobody_knows_are_forgotten_when_nothing_is_under_way(self) -> None:
        bench = Bench(Tenant("t", concurrency=9))
        busy = bench.limits.account("busy")
        busy.in_flight += 1
        idle, known = bench.limits.account("idle"), bench.limits.account("t")
        bench.limits.set_spent(TODAY, {})
        assert bench.limits.account("busy") is busy
        assert bench.limits.account("t") is known
        assert bench.limits.account("idle") is not idle

    def test_demand_is_what_came_of_those_with_limits_also_in_vain(self) -> None:
        bench = Bench(Tenant("t", concurrency=2), Tenant("u", concurrency=2))
        assert bench.admitted("t") == 2
        bench.come("u")
        assert bench.limits.drain_demand() == {"t": 3, "u": 1}
        assert bench.limits.drain_demand() == {}
