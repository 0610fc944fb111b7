"""Behaviour that only SQLite has; tests/contract/stores/test_usage_store.py tests the rest."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from control_plane.metering.adapters import sqlite_usage
from control_plane.metering.adapters.sqlite_usage import open_sqlite_usage
from control_plane.metering.domain.usage import BATCH_IDS_KEPT_S, EVERY_DAY, Usage, UsageBatch, UsageKey
from control_plane.storage.sqlite import open_sqlite
from tests.aio import run

ONE = (UsageKey("2023-11-15", "a", "m"), Usage(requests=1))


async def sent(path: Path, *ids: str) -> int:
    """Send these batches; return how many requests are counted then."""
    store = await open_sqlite_usage(path)
    for name in ids:
        await store.add(UsageBatch(name, (ONE,)))
    ((_, usage),) = await store.totals(since_day=EVERY_DAY[0], until_day=EVERY_DAY[1])
    await store.close()
    return usage.requests


def test_a_batch_is_known_across_restarts_for_some_days_and_then_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    assert run(sent(path, "a", "b", "c", "a")) == 3
    assert run(sent(path, "a", "b")) == 3
    _age(path, "a", BATCH_IDS_KEPT_S - 3600)
    _age(path, "b", BATCH_IDS_KEPT_S + 3600)
    assert run(sent(path, "d")) == 4
    with sqlite3.connect(path) as connection:
        assert sorted(name for (name,) in connection.execute("SELECT id FROM batches")) == ["a", "c", "d"]
    connection.close()
    assert run(sent(path, "a")) == 4


@pytest.mark.parametrize(("keep_days", "kept"), [(None, 4), (1, 1), (2, 2)])
def test_days_that_are_not_kept_are_removed_with_what_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_days: int | None, kept: int
) -> None:
    days = ["2022-11-16", "2023-11-14", "2023-11-15", "2023-11-16"]
    monkeypatch.setattr("control_plane.metering.adapters.sqlite_usage.time", SimpleNamespace(time=lambda: 1_700_100_000.0))

    async def left() -> list[str]:
        store = await open_sqlite_usage(tmp_path / "usage.sqlite", keep_days)
        await store.add(UsageBatch("a", tuple((UsageKey(day, "a", "m"), Usage(requests=1)) for day in days)))
        found = await store.totals(since_day=EVERY_DAY[0], until_day=EVERY_DAY[1])
        await store.close()
        return [key.day for key, _ in found]

    assert run(left()) == days[-kept:]


def test_a_file_of_an_earlier_version_has_no_tokens_yet(tmp_path: Path) -> None:
    async def main() -> list[tuple[UsageKey, Usage]]:
        older = await open_sqlite(tmp_path / "usage.sqlite", sqlite_usage._MIGRATIONS[:1])
        await older.run(lambda connection: connection.execute("INSERT INTO sums VALUES ('2026-11-27', 'a', 'm', 1, 0, 0, 2, 3, 0.5, 0)"))
        await older.close()
        store = await open_sqlite_usage(tmp_path / "usage.sqlite")
        key = UsageKey("2026-11-27", "a", "m")
        await store.add(UsageBatch("1", ((key, Usage(requests=1, input_tokens=7, output_tokens=3)),)))
        found = await store.totals(since_day=EVERY_DAY[0], until_day=EVERY_DAY[1])
        await store.close()
        return found

    assert run(main()) == [(UsageKey("2026-11-27", "a", "m"), Usage(2, 0, 0, 2, 3, 0.5, 0, 7, 3))]


def _age(path: Path, name: str, age_s: float) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE batches SET added_s = added_s - ? WHERE id = ?", (age_s, name))
    connection.close()
