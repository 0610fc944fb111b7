"""Behaviour that only SQLite has; tests/contract/test_usage_store.py tests the rest."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from control_plane.metering.adapters.sqlite_usage import open_sqlite_usage
from control_plane.metering.domain.usage import BATCH_IDS_KEPT_S, EVERY_DAY, Usage, UsageBatch, UsageKey
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


def _age(path: Path, name: str, age_s: float) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE batches SET added_s = added_s - ? WHERE id = ?", (age_s, name))
    connection.close()
