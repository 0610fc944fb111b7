"""The gateway's own counts say how many answers its cache gave."""

from __future__ import annotations

from perf.servers.cache_answers import CacheAnswers

PAGE = """# TYPE tidegate_cache_answers counter
tidegate_cache_answers_total{model="text_embedding",status="hit"} 30
tidegate_cache_answers_total{model="text_embedding",status="miss"} 60.0
tidegate_cache_answers_total{model="other",status="joined"} 10
tidegate_cache_entries 60
"""


def test_what_joined_a_request_under_way_is_found_too() -> None:
    assert CacheAnswers.of(PAGE).hit_ratio == 0.4


def test_a_run_has_what_came_in_between() -> None:
    assert (CacheAnswers(50, 120) - CacheAnswers(40, 100)).hit_ratio == 0.5


def test_without_a_cache_nothing_is_found() -> None:
    assert CacheAnswers.of("").hit_ratio == 0
