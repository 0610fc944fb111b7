from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from random import Random

import pytest

from control_plane.admission.domain.adaptive_limit import MIN_SLOTS, AdaptiveLimit, LimitState, Trial


class TestTrial:
    def test_windows_take_turns(self) -> None:
        trial = Trial(kept=8, other=4)
        assert [trial.slots, trial.after(100.0).slots, trial.after(100.0).after(100.0).slots] == [8, 4, 8]

    @pytest.mark.parametrize(
        ("other", "rates", "ahead"),
        [
            pytest.param(4, [100, 95], 1, id="fewer do as well"),
            pytest.param(4, [100, 85], -1, id="fewer do less"),
            pytest.param(4, [100, 85, 100, 95], 0, id="one pair each way"),
            pytest.param(4, [100, 95, 100, 70], -3, id="fewer do clearly less, which is not tried again"),
            pytest.param(16, [100, 105], -1, id="more do as well"),
            pytest.param(16, [100, 115], 1, id="more do more"),
            pytest.param(16, [100, 1000], 1, id="more, by one odd window"),
            pytest.param(16, [100, 1], -1, id="less, by one odd window"),
        ],
    )
    def test_a_pair_speaks_for_one_of_them(self, other: int, rates: list[float], ahead: int) -> None:
        trial = Trial(kept=8, other=other)
        for rate in rates:
            trial = trial.after(rate)
        assert trial.ahead == ahead
        assert trial.is_decided == (abs(ahead) == 3)


def tell(learned: LimitState, rate: Callable[[int], float], *, windows: int, now_s: float = 0.0) -> list[LimitState]:
    """Return the state after each window of a model, whose throughput is a function of its slots."""
    known = [learned]
    for _ in range(windows):
        known.append(known[-1].after(rate(known[-1].slots), now_s))
    return known[1:]


def steady(_: int) -> float:
    return 100.0


class TestLearned:
    def test_a_model_that_makes_no_use_of_them_comes_down_to_two_step_by_step(self) -> None:
        known = tell(LimitState(kept=16, most=16), steady, windows=18)
        assert [each.kept for each in known[::6]] == [16, 8, 4]
        assert known[-1].kept == MIN_SLOTS
        assert known[-1].trial is None

    def test_one_that_gets_more_done_keeps_them(self) -> None:
        known = tell(LimitState(kept=16, most=16), float, windows=2)
        assert [each.slots for each in known] == [8, 16]
        assert known[-1].rests_until_s == 15.0

    @pytest.mark.parametrize("kept", [4, 16])
    def test_one_that_another_gateway_uses_with_sixteen_gives_it_no_more_than_half(self, kept: int) -> None:
        known = tell(LimitState(kept, most=16, tries_fewer=False), lambda slots: slots / (slots + 16), windows=20)
        assert known[-1].kept == 16

    def test_it_rests_ever_longer_and_tries_both_ways_by_turns(self) -> None:
        learned, rests, others = LimitState(kept=8, most=64), list[float](), list[int]()
        for _ in range(4):
            now_s = max(0.0, learned.rests_until_s)
            assert learned.after(1.0, now_s - 0.1) is learned or now_s == 0.0
            while learned.rests_until_s <= now_s:
                learned = learned.after(min(learned.slots, 8), now_s)
                others += [learned.trial.other] if learned.trial else []
            rests.append(learned.rests_until_s - now_s)
        assert rests == [15.0, 30.0, 60.0, 60.0]
        assert list(dict.fromkeys(others)) == [4, 16]
        assert learned.kept == 8

    @pytest.mark.parametrize(
        ("kept", "most", "tries_fewer", "other"), [(2, 16, True, 4), (16, 16, False, 8), (3, 16, True, 2), (12, 16, False, 16)]
    )
    def test_where_there_are_no_fewer_or_no_more_the_other_way_is_tried(self, kept: int, most: int, tries_fewer: bool, other: int) -> None:
        trial = LimitState(kept, most, tries_fewer).after(1.0, 0.0).trial
        assert trial is not None
        assert trial.other == other

    @pytest.mark.parametrize("most", [1, 2])
    def test_one_that_may_have_no_more_than_the_least_stays_there(self, most: int) -> None:
        assert all(each == LimitState(most, most) for each in tell(LimitState(most, most), steady, windows=9))

    def test_what_could_not_be_told_is_tried_again_after_a_rest(self) -> None:
        learned = LimitState(kept=16, most=16)
        assert learned.interrupted(5.0) is learned
        tried = learned.after(100.0, 5.0)
        assert tried.slots == 8
        assert tried.interrupted(6.0) == replace(learned, rests_until_s=21.0)


@dataclass(frozen=True, slots=True)
class Model:
    """Simulated model: instances that each take as many requests at a time as a batch holds."""

    instances: int = 1
    batch: int = 1
    batch_s: float = 0.0
    request_s: float = 0.0


ONE = Model(batch_s=0.006)
FOUR = Model(instances=4, batch_s=0.006)
FAST = Model(instances=2, batch_s=0.0005)
BATCHES = Model(batch=64, batch_s=0.005, request_s=0.00005)
TEXTS = Model(batch=64, batch_s=0.004, request_s=0.0007)


class Saturated:
    """Simulation of a model whose slots are always all taken."""

    def __init__(self, model: Model, limit: AdaptiveLimit | int, *, drift: float = 0.0, seed: int = 0) -> None:
        """`noise` varies each batch's time; `drift` makes the model faster or slower for a fifth of a second
        at a time.
        """
        self.model = model
        self._limit = limit
        self._noise, self._drift = 0.1, drift
        self._random = Random(seed)
        self.now_s = 0.0
        self.done = 0
        self._taken = self._queued = 0
        self._busy = list[tuple[float, int]]()
        self._speed, self._speed_until_s = 1.0, 0.0

    def run(self, seconds: float) -> float:
        """Throughput in requests per second."""
        done, until_s = self.done, self.now_s + seconds
        while self.now_s < until_s:
            self._start()
            self.now_s, batch = heappop(self._busy)
            for _ in range(batch):
                self._taken -= 1
                self.done += 1
                if isinstance(self._limit, AdaptiveLimit):
                    self._limit.ended(1.0, self.now_s)
        return (self.done - done) / seconds

    def _start(self) -> None:
        slots = self._limit if isinstance(self._limit, int) else self._limit.slots
        new = max(0, slots - self._taken)
        self._taken, self._queued = self._taken + new, self._queued + new
        while self._queued and len(self._busy) < self.model.instances:
            batch = min(self._queued, self.model.batch)
            self._queued -= batch
            heappush(self._busy, (self.now_s + self._seconds(batch), batch))

    def _seconds(self, batch: int) -> float:
        if self.now_s >= self._speed_until_s:
            self._speed, self._speed_until_s = self._random.uniform(1 - self._drift, 1 + self._drift), self.now_s + 0.2
        noise = self._random.uniform(1 - self._noise, 1 + self._noise)
        return (self.model.batch_s + batch * self.model.request_s) * noise / self._speed


def fixed(model: Model, slots: int) -> float:
    return Saturated(model, slots).run(20.0)


@pytest.mark.parametrize(
    ("model", "most", "kept"),
    [
        pytest.param(ONE, 16, 2, id="one after the other"),
        pytest.param(FOUR, 16, 4, id="four instances"),
        pytest.param(FAST, 16, 2, id="fast"),
        pytest.param(BATCHES, 16, 16, id="batches"),
        pytest.param(TEXTS, 16, 16, id="batches of a slow model"),
        pytest.param(BATCHES, 64, 64, id="large batches"),
    ],
)
def test_within_seconds_a_model_has_what_it_makes_use_of(model: Model, most: int, kept: int) -> None:
    limit = AdaptiveLimit(most)
    saturated = Saturated(model, limit)
    saturated.run(6.0)
    assert limit.slots == kept
    assert saturated.run(60.0) > 0.95 * fixed(model, most)


@pytest.mark.parametrize(("model", "at_least", "at_most"), [(ONE, 2, 4), (FOUR, 4, 8), (BATCHES, 16, 16), (TEXTS, 16, 16)])
@pytest.mark.parametrize("seed", range(3))
def test_noise_carries_it_nowhere(model: Model, at_least: int, at_most: int, seed: int) -> None:
    limit = AdaptiveLimit(16)
    saturated = Saturated(model, limit, drift=0.2, seed=seed)
    saturated.run(30.0)
    kept = list[int]()
    for _ in range(300):
        saturated.run(1.0)
        kept.append(limit._learned.kept)
    assert sum(at_least <= each <= at_most for each in kept) > 0.9 * len(kept)


@pytest.mark.parametrize(
    ("before", "kept_before", "after", "kept_after"),
    [
        pytest.param(ONE, 2, BATCHES, 16, id="batches by now"),
        pytest.param(BATCHES, 16, ONE, 2, id="no longer batches"),
        pytest.param(ONE, 2, FOUR, 4, id="more instances"),
    ],
)
def test_a_model_that_changes_has_what_it_needs_within_two_minutes(before: Model, kept_before: int, after: Model, kept_after: int) -> None:
    limit = AdaptiveLimit(16)
    saturated = Saturated(before, limit)
    saturated.run(200.0)
    assert limit._learned.kept == kept_before
    saturated.model = after
    saturated.run(120.0)
    assert limit._learned.kept == kept_after


class TestSlotLimit:
    def test_load_that_goes_leaves_it_as_it_is_until_it_is_forgotten(self) -> None:
        limit = AdaptiveLimit(16)
        saturated = Saturated(ONE, limit)
        saturated.run(6.0)
        limit.interrupt(saturated.now_s)
        saturated.now_s += 59.0
        saturated.run(0.01)
        assert limit.slots == 2
        saturated.now_s += 61.0
        saturated.run(0.01)
        assert limit.slots == 16

    def test_load_that_comes_and_goes_too_soon_to_tell_changes_nothing(self) -> None:
        limit = AdaptiveLimit(16)
        saturated = Saturated(ONE, limit)
        for _ in range(100):
            saturated.run(0.8)
            limit.interrupt(saturated.now_s)
            assert limit.slots == 16
            assert not limit.is_busy

    def test_it_is_busy_while_it_measures_or_tries(self) -> None:
        limit = AdaptiveLimit(16)
        seen = [limit.is_busy]
        limit.ended(1.0, 0.0)
        seen.append(limit.is_busy)
        saturated = Saturated(ONE, limit)
        while limit.slots == 16:
            saturated.run(0.01)
        seen.append(limit.is_busy)
        limit.interrupt(saturated.now_s)
        seen.append(limit.is_busy)
        assert seen == [False, True, True, False]
        assert limit.slots == 16

    def test_work_is_counted_not_requests(self) -> None:
        limit, now_s = AdaptiveLimit(16), 0.0
        for _ in range(5000):
            cost = 1.0 if limit.slots == limit._learned.kept else 10.0
            now_s += cost / 1000.0
            limit.ended(cost, now_s)
        assert limit._learned.kept == MIN_SLOTS

    def test_what_was_there_when_the_number_changed_does_not_count(self) -> None:
        limit = AdaptiveLimit(16)
        for now_ms in range(1, 17):
            limit.ended(1.0, now_ms / 1000.0)
        for now_ms in range(17, 16 + 4 * 16):
            limit.ended(1.0, now_ms * 0.01)
        assert limit.slots == 16
        limit.ended(1.0, 0.8)
        assert limit.slots == 8  # the first window has ended with the 64th after the 16th
        assert limit._learned.trial is not None
        assert limit._learned.trial.rate_of_kept == pytest.approx(64 / (0.8 - 0.016))
