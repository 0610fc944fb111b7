from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from control_plane.fleet.domain.fleet import ModelFacts
from control_plane.fleet.domain.placement.placement import Obstacle, Refusal
from control_plane.fleet.routing.load_requests import LoadRequests
from control_plane.models.domain.description import ModelSpec

REFUSAL = Refusal(Obstacle.IN_USE, "there is no room", 0.01)


class Searches:
    """A loader that finds no room for any model, and takes a millisecond to find that out, on a clock that a test sets."""

    def __init__(self) -> None:
        self.at_s = 100.0
        self.refusal: Refusal | None = REFUSAL
        self.made: list[tuple[str, str | None]] = []
        self.woken = 0
        self.state: Any = SimpleNamespace(
            now_s=lambda: self.at_s,
            measurements=SimpleNamespace(begin_refusals=lambda facts: None),
            room_changes=0,
            released=self.wake,
        )
        loads: Any = self
        self.requests = LoadRequests(self.state, loads)

    def wake(self) -> None:
        self.woken += 1

    def load_replica(self, facts: ModelFacts, *, pool: str | None = None) -> Refusal | None:
        self.made.append((facts.name, pool))
        self.at_s += 0.001
        return self.refusal

    def begin(self, model: str, pool: str | None = None) -> Refusal | None:
        return self.requests.begin(ModelFacts(ModelSpec(model), 1, load_s=1.0, service_s=0.01), pool)


def test_of_a_crowd_that_waits_for_one_model_one_searches_for_room_at_a_time() -> None:
    searches = Searches()
    assert {searches.begin("a") for _ in range(1000)} == {REFUSAL}
    assert searches.made == [("a", None)]
    searches.at_s += 0.005
    assert searches.begin("a") is REFUSAL
    assert searches.made == [("a", None)] * 2


async def test_who_is_told_of_room_while_a_search_in_vain_holds_is_woken_once_it_does_not() -> None:
    searches = Searches()
    for room_changes in (0, 0, 1, 1, 2):
        searches.state.room_changes = room_changes
        searches.begin("a")
    assert searches.made == [("a", None)]
    await asyncio.sleep(0.02)
    assert searches.woken == 1


async def test_who_is_woken_too_early_is_woken_again() -> None:
    searches = Searches()
    for times in range(3):
        searches.state.room_changes = times
        searches.begin("a")
        await asyncio.sleep(0.02)
        assert searches.woken == times, "the clock has not reached the end of the search yet"


async def test_a_crowd_to_which_nothing_has_happened_since_is_not_woken() -> None:
    searches = Searches()
    for _ in range(10):
        searches.begin("a")
    await asyncio.sleep(0.02)
    assert searches.woken == 0


def test_each_model_and_pool_is_searched_for_by_itself() -> None:
    searches = Searches()
    for model, pool in (("a", None), ("b", None), ("a", "long"), ("a", None)):
        searches.begin(model, pool)
    assert searches.made == [("a", None), ("b", None), ("a", "long")]


def test_what_has_begun_is_no_refusal_for_the_next() -> None:
    searches = Searches()
    searches.refusal = None
    assert searches.begin("a") is searches.begin("a") is None
    assert len(searches.made) == 2


def test_of_any_number_of_models_few_are_remembered() -> None:
    searches = Searches()
    for number in range(3000):
        searches.begin(f"m{number}")
    assert len(searches.requests._in_vain) <= 1000
