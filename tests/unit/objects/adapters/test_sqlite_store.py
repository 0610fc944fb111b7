"""SQLite state store: what is particular to SQLite. All stores together are tested in
tests/contract/stores/test_state_store.py.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from control_plane.core.errors import Conflict
from control_plane.objects.adapters.sqlite_store import open_sqlite_state
from control_plane.objects.domain.stored import Kind, Stored
from tests.aio import run

ROUNDS = 5

_WRITE = """
import asyncio, sys
from pathlib import Path
from control_plane.objects.adapters.sqlite_store import open_sqlite_state
from control_plane.objects.domain.stored import Kind, Stored

async def main():
    store = await open_sqlite_state(Path(sys.argv[1]))
    number = int(sys.argv[2])
    while True:
        number += 1
        if number % 7 == 0:
            kept = await store.list_all(Kind.TENANT)
            await store.restore([*kept, Stored(Kind.TENANT, f"t{number}", 0, {"n": number})])
        else:
            await store.put(Kind.TENANT, f"t{number}", {"n": number}, expected=0)
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()

asyncio.run(main())
"""


async def read(path: Path) -> list[Stored]:
    store = await open_sqlite_state(path)
    try:
        found = await store.changes(0, timeout_s=0)
        put = await store.put(Kind.ROUTE, "after", {})
        assert put.resource_version > max((stored.resource_version for stored in found), default=0)
        return [stored for stored in found if stored.kind == Kind.TENANT]
    finally:
        await store.close()


def test_what_was_acknowledged_is_there_after_kill_9_at_any_instant(tmp_path: Path) -> None:
    seed = time.time_ns()
    chance = random.Random(seed)
    path = tmp_path / "state.sqlite"
    acknowledged = 0
    for _ in range(ROUNDS):
        command = [sys.executable, "-c", _WRITE, str(path), str(acknowledged + 1000)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            first = int(writer.stdout.readline())
            time.sleep(chance.uniform(0, 0.3))
            writer.send_signal(signal.SIGKILL)
            told = [first, *(int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n"))]
        acknowledged = told[-1]
        found = {stored.name: stored.body for stored in run(read(path))}
        assert [number for number in told if found.get(f"t{number}") != {"n": number}] == [], f"seed {seed}"
        assert len(found) - len([name for name in found if int(name[1:]) <= acknowledged]) <= 1, "more than was under way"


async def test_the_numbers_go_on_where_they_ended(tmp_path: Path) -> None:
    store = await open_sqlite_state(tmp_path / "a" / "state.sqlite")
    put = await store.put(Kind.TENANT, "a", {})
    await store.delete(Kind.TENANT, "a")
    await store.close()
    store = await open_sqlite_state(tmp_path / "a" / "state.sqlite")
    assert (await store.put(Kind.TENANT, "b", {})).resource_version == put.resource_version + 2
    with pytest.raises(Conflict):
        await store.put(Kind.TENANT, "b", {}, expected=0)
    await store.close()


async def test_what_this_process_writes_is_told_without_a_poll(tmp_path: Path) -> None:
    store = await open_sqlite_state(tmp_path / "state.sqlite", poll_s=3600.0)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(store.changes(0, timeout_s=3600.0))
        await store.list_all(Kind.TENANT)  # by now the poll has begun: one thread reads for it before it writes
        written = await store.put(Kind.TENANT, "acme", {})
    assert waiting.result() == [written]
    await store.close()
