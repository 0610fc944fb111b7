"""What each forecast foretells of requests with a pattern, and without one."""

from __future__ import annotations

import pytest

from control_plane.fleet.simulation.workload import Request
from perf.prefetch.forecasts import Clairvoyant, Forecast, HybridHistogram, IdleTimes, Patterns, Successions


def used(forecast: Forecast, *uses: tuple[str, float]) -> Forecast:
    for model, at_s in uses:
        forecast.used(model, at_s)
    return forecast


EVERY_TEN_S = [("a", 10.0 * number) for number in range(20)]


class TestIdleTimes:
    def test_a_timer_is_foretold_shortly_before_its_time(self) -> None:
        forecast = used(IdleTimes(), *EVERY_TEN_S)
        assert [forecast.probability("a", 190.0 + idle_s, 2.0) for idle_s in (1.0, 7.0, 9.0)] == [0.0, 0.0, pytest.approx(19 / 20)]

    def test_what_has_been_idle_for_longer_than_ever_is_not(self) -> None:
        assert used(IdleTimes(), *EVERY_TEN_S).probability("a", 205.0, 100.0) == 0.0

    @pytest.mark.parametrize("uses", [[], EVERY_TEN_S[:3]])
    def test_nor_is_what_is_hardly_known(self, uses: list[tuple[str, float]]) -> None:
        assert used(IdleTimes(), *uses).probability("a", 21.0, 100.0) == 0.0


class TestSuccessions:
    def test_a_model_that_always_follows_is_foretold_until_it_has_come(self) -> None:
        forecast = used(
            Successions(5.0), *((model, 100.0 * turn + after_s) for turn in range(9) for model, after_s in (("a", 0), ("b", 2)))
        )
        forecast.used("a", 900.0)
        assert forecast.probability("b", 901.0, 5.0) == pytest.approx(9 / 10)
        assert forecast.probability("c", 901.0, 5.0) == 0.0
        forecast.used("b", 902.0)
        assert forecast.probability("b", 903.0, 5.0) == 0.0

    def test_not_after_its_window(self) -> None:
        forecast = used(Successions(5.0), *((model, 100.0 * turn) for turn in range(9) for model in "ab"))
        assert forecast.probability("b", 806.0, 5.0) == 0.0

    def test_of_both_kinds_of_patterns_the_more_confident_counts(self) -> None:
        forecast = used(Patterns(5.0), *EVERY_TEN_S)
        assert forecast.probability("a", 199.0, 2.0) == pytest.approx(19 / 20)


class TestHybridHistogram:
    def test_a_model_is_wanted_around_its_usual_idle_times(self) -> None:
        forecast = used(HybridHistogram(0.1), *EVERY_TEN_S)
        wanted = {idle_s: forecast.probability("a", 190.0 + idle_s, 0.0) for idle_s in (1.0, 8.5, 9.5, 10.5, 12.0)}
        assert wanted == {1.0: 0.0, 8.5: 0.0, 9.5: 1.0, 10.5: 1.0, 12.0: 0.0}

    def test_not_if_most_idle_times_are_longer_than_it_reaches(self) -> None:
        assert used(HybridHistogram(0.01), *EVERY_TEN_S).probability("a", 199.9, 0.0) == 0.0

    def test_not_if_they_are_all_over_it(self) -> None:
        at_s, uses = 0.0, []
        for number in range(240):
            at_s += number * 0.1 + 0.05
            uses.append(("a", at_s))
        assert used(HybridHistogram(0.1), *uses).probability("a", at_s + 12.0, 0.0) == 0.0


def test_a_clairvoyant_knows() -> None:
    forecast = Clairvoyant([Request(1.0, "a", 0.1), Request(5.0, "a", 0.1)])
    assert [forecast.probability("a", now_s, 2.0) for now_s in (0.0, 1.0, 3.0, 5.0)] == [1.0, 0.0, 1.0, 0.0]
