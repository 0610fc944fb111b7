from __future__ import annotations

import pytest

from control_plane.objects.domain.stored import Kind
from tests.aio import run
from tests.unit.admin.admin_bench import Bench


def generations(bench: Bench) -> dict[str, str]:
    return {stored.name: str((stored.body or {})["generation"]) for stored in run(bench.store.list_all(Kind.PURGE))}


@pytest.mark.parametrize(("path", "name"), [("/cache", "*"), ("/cache/a", "a"), ("/cache/nobody.has_it", "nobody.has_it")])
def test_each_purge_is_stored_as_another_one(bench: Bench, path: str, name: str) -> None:
    seen = set()
    for _ in range(3):
        assert bench.ask("DELETE", path) == (204, None)
        assert set(generations(bench)) == {name}
        seen |= set(generations(bench).values())
    assert len(seen) == 3


@pytest.mark.parametrize("path", ["/cache/*", "/cache/a%2Fb", "/cache/.hidden"])
def test_what_is_no_models_name_is_refused(bench: Bench, path: str) -> None:
    assert bench.ask("DELETE", path)[0] in (400, 404)
    assert generations(bench) == {}


def test_while_the_store_is_away_nothing_is_purged(bench: Bench) -> None:
    bench.store.is_away = True
    status, body = bench.ask("DELETE", "/cache")
    assert (status, body["code"], body["retryable"]) == (503, "store_unavailable", True)


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
def test_nothing_else_can_be_done_to_it(bench: Bench, method: str) -> None:
    assert bench.ask(method, "/cache")[0] == 405
