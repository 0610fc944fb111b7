"""The jobs that are handed in are the same for the same seed, and of every kind."""

from __future__ import annotations

import json

from perf.chaos_jobs.work import TENANTS, batch_lines, jobs


def test_the_same_seed_makes_the_same_jobs_of_every_kind_and_tenant() -> None:
    made = list(jobs(500, seed=3))
    assert made == list(jobs(500, seed=3)) != list(jobs(500, seed=4))
    assert {each.tenant for each in made} == set(TENANTS)
    assert {each.kind for each in made} == {"JSON", "binary", "cached", "text", "binary text", "wrong", "cancelled", "slow"}
    keys = [each.key for each in made if each.key]
    assert len(set(keys)) == len(keys) < 500


def test_one_line_of_a_batch_is_wrong_and_each_has_a_name_of_its_own() -> None:
    lines = [json.loads(line) for line in batch_lines(0, seed=3)]
    assert len({line["custom_id"] for line in lines}) == len(lines)
    assert sum("dimensions" in line["body"] for line in lines) == 1
    assert batch_lines(0, seed=3) != batch_lines(1, seed=3)
