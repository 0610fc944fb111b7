"""Usage store in an SQLite file; implements `metering/ports.UsageStore`.

One transaction adds a batch's sums and its id, so that a batch that is sent again is recognized.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import partial
from itertools import chain, starmap
from pathlib import Path

from control_plane.metering.domain.usage import (
    BATCH_IDS_KEPT_S,
    KEEP_RECORDS,
    Usage,
    UsageBatch,
    UsageKey,
    UsageRecord,
    fields_of,
    first_kept_day,
)
from control_plane.metering.domain.usage_text import decode_record, encode_records
from control_plane.storage.sqlite import SqliteFile, open_sqlite, transaction

_KEY = tuple(field.name for field in fields(UsageKey))
_SUMS = tuple(field.name for field in fields(Usage))
_MIGRATIONS = (
    (
        (
            "CREATE TABLE sums (day TEXT NOT NULL, tenant TEXT NOT NULL, model TEXT NOT NULL, requests INTEGER NOT NULL,"
            " failed INTEGER NOT NULL, refused INTEGER NOT NULL, rows INTEGER NOT NULL, elements INTEGER NOT NULL,"
            " compute_units REAL NOT NULL, cache_hits INTEGER NOT NULL, PRIMARY KEY (day, tenant, model)) WITHOUT ROWID"
        ),
        "CREATE TABLE batches (id TEXT PRIMARY KEY, added_s REAL NOT NULL) WITHOUT ROWID",
        "CREATE INDEX batches_by_age ON batches (added_s)",
    ),
    ("CREATE TABLE records (number INTEGER PRIMARY KEY AUTOINCREMENT, record TEXT NOT NULL)",),
    (
        "ALTER TABLE sums ADD COLUMN input_tokens INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE sums ADD COLUMN output_tokens INTEGER NOT NULL DEFAULT 0",
    ),
)
_COLUMNS = ", ".join((*_KEY, *_SUMS))
_ADD_ID = "INSERT OR IGNORE INTO batches (id, added_s) VALUES (?, ?)"
_ADD = (
    f"INSERT INTO sums ({_COLUMNS}) VALUES ({', '.join('?' * (3 + len(_SUMS)))})"  # noqa: S608
    f" ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in _SUMS)}"
)


class SqliteUsageStore:
    """Usage store in SQLite; made by `open_sqlite_usage`."""

    def __init__(self, file: SqliteFile, keep_days: int | None = None, keep_records: int = KEEP_RECORDS) -> None:
        self._file = file
        self._keep_days = keep_days
        self._keep_records = keep_records

    async def add(self, batch: UsageBatch) -> None:
        await self.add_all((batch,))

    async def add_all(self, batches: Sequence[UsageBatch]) -> None:
        now_s = time.time()
        first_day = first_kept_day(now_s, self._keep_days)
        await self._file.run(partial(_add, batches=batches, now_s=now_s, first_day=first_day, keep=self._keep_records))

    async def totals(self, *, since_day: str, until_day: str) -> list[tuple[UsageKey, Usage]]:
        return await self._file.run(partial(_totals, since_day=since_day, until_day=until_day))

    async def recorded(self, after: int, *, limit: int) -> list[UsageRecord]:
        return await self._file.run(partial(_recorded, after=after, limit=limit))

    async def newest_record(self) -> int:
        return await self._file.run(_newest_record)

    async def restore(self, totals: Iterable[tuple[UsageKey, Usage]]) -> None:
        await self._file.run(partial(_restore, totals=list(totals)))

    async def run(self) -> None:
        """Return at once: this store has no background work."""

    async def close(self) -> None:
        await self._file.close()


async def open_sqlite_usage(path: Path, keep_days: int | None = None, keep_records: int = KEEP_RECORDS) -> SqliteUsageStore:
    """Open or create the file; sums older than `keep_days`, and all but the newest records, are removed from it with what is
    added. Raises StartupError."""
    return SqliteUsageStore(await open_sqlite(path, _MIGRATIONS), keep_days, keep_records)


def _add(connection: sqlite3.Connection, *, batches: Sequence[UsageBatch], now_s: float, first_day: str, keep: int) -> None:
    # Together: an id without its sums would lose them, sums without their id would be added twice.
    with transaction(connection):
        connection.execute("DELETE FROM batches WHERE added_s < ?", (now_s - BATCH_IDS_KEPT_S,))
        added = [batch for batch in batches if connection.execute(_ADD_ID, (batch.id, now_s)).rowcount]
        sums: dict[UsageKey, Usage] = {}
        for key, usage in chain.from_iterable(batch.sums for batch in added):
            sums[key] = sums.get(key, Usage()) + usage
        # In the same transaction, so that the records amount to the sums, whatever ends when.
        records = chain.from_iterable(encode_records(batch, at_s=now_s) for batch in added)
        connection.executemany("INSERT INTO records (record) VALUES (?)", ((text.decode(),) for text in records))
        connection.executemany(_ADD, starmap(fields_of, sums.items()))
        connection.execute("DELETE FROM sums WHERE day < ?", (first_day,))
        connection.execute("DELETE FROM records WHERE number <= ?", (_newest_record(connection) - keep,))


def _totals(connection: sqlite3.Connection, *, since_day: str, until_day: str) -> list[tuple[UsageKey, Usage]]:
    query = f"SELECT {_COLUMNS} FROM sums WHERE day BETWEEN ? AND ? ORDER BY day, tenant, model"  # noqa: S608
    return [(UsageKey(*row[:3]), Usage(*row[3:])) for row in connection.execute(query, (since_day, until_day))]


def _recorded(connection: sqlite3.Connection, *, after: int, limit: int) -> list[UsageRecord]:
    rows = connection.execute("SELECT number, record FROM records WHERE number > ? ORDER BY number LIMIT ?", (after, limit))
    return [decode_record(*row) for row in rows]


def _newest_record(connection: sqlite3.Connection) -> int:
    (newest,) = connection.execute("SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'records'").fetchone()
    return int(newest)


def _restore(connection: sqlite3.Connection, *, totals: list[tuple[UsageKey, Usage]]) -> None:
    with transaction(connection):
        connection.execute("DELETE FROM sums")
        connection.executemany(_ADD, starmap(fields_of, totals))
