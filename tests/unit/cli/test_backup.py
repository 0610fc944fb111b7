from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from control_plane.app.stores import open_state_store, open_usage_store
from control_plane.cli.backup import backup, restore
from control_plane.core.errors import Conflict, InvalidRequest
from control_plane.metering.domain.usage import EVERY_DAY, Usage, UsageBatch, UsageKey
from control_plane.objects.domain.stored import Kind
from tests.aio import run

USED = (UsageKey("2023-11-15", "a", "m"), Usage(1, 0, 0, 1, 2, 0.5))
HELD = (
    [(Kind.ROUTE, "r", {"model": "m"}), (Kind.TENANT, "a", {"weight": 2.0})],
    [USED],
)


async def fill(state_dir: Path) -> None:
    state, usage = await open_state_store(None, state_dir), await open_usage_store(None, state_dir)
    await state.put(Kind.ROUTE, "r", {"model": "m"})
    await state.put(Kind.PRICE, "gone", {})
    await state.delete(Kind.PRICE, "gone")
    await state.put(Kind.TENANT, "a", {"weight": 2.0})
    await usage.add(UsageBatch("b", (USED,)))
    await state.close()
    await usage.close()


async def purges(state_dir: Path) -> list[str]:
    state = await open_state_store(None, state_dir)
    found = [(stored.body or {})["generation"] for stored in await state.list_all(Kind.PURGE)]
    await state.close()
    return found


async def held(state_dir: Path) -> object:
    """Return everything in the store but purges."""
    state, usage = await open_state_store(None, state_dir), await open_usage_store(None, state_dir)
    present = [stored for stored in await state.changes(0, timeout_s=0) if stored.body is not None and stored.kind != Kind.PURGE]
    objects = [(stored.kind, stored.name, stored.body) for stored in present]
    totals = await usage.totals(since_day=EVERY_DAY[0], until_day=EVERY_DAY[1])
    await state.close()
    await usage.close()
    return objects, totals


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    run(fill(tmp_path / "full"))
    backup(tmp_path / "saved.jsonl", state_dir=tmp_path / "full")
    return tmp_path / "saved.jsonl"


def test_what_is_saved_can_be_restored_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "saved.jsonl"
    run(fill(tmp_path / "full"))
    assert run(held(tmp_path / "full")) == HELD
    backup(saved, state_dir=tmp_path / "full")
    restore(saved, state_dir=tmp_path / "new")
    assert run(held(tmp_path / "new")) == HELD
    told = capsys.readouterr().out
    assert f"2 objects and 1 usage sums of {tmp_path / 'full'} saved in {saved}" in told
    assert f"2 objects and 1 usage sums restored from {saved} to {tmp_path / 'new'}" in told


def test_only_this_user_can_read_it_and_nothing_else_is_left(tmp_path: Path, saved: Path) -> None:
    assert saved.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"full", "saved.jsonl"}


def test_a_new_backup_replaces_the_old_one_and_its_mode(tmp_path: Path, saved: Path) -> None:
    content = saved.read_bytes()
    saved.write_bytes(b"old")
    saved.chmod(0o644)
    backup(saved, state_dir=tmp_path / "full")
    assert saved.read_bytes() == content
    assert saved.stat().st_mode & 0o777 == 0o600


def test_a_store_that_is_not_empty_is_replaced_by_force_only(tmp_path: Path, saved: Path) -> None:
    run(fill(tmp_path / "other"))

    async def change() -> None:
        state = await open_state_store(None, tmp_path / "other")
        await state.put(Kind.TENANT, "more", {})
        await state.close()

    run(change())
    before = run(held(tmp_path / "other"))
    with pytest.raises(Conflict, match="it holds 3 objects and 1 usage sums, which would be lost; use --force to overwrite them"):
        restore(saved, state_dir=tmp_path / "other")
    assert run(held(tmp_path / "other")) == before
    restore(saved, force=True, state_dir=tmp_path / "other")
    assert run(held(tmp_path / "other")) == HELD


def test_a_restore_purges_and_what_it_purged_is_not_saved(tmp_path: Path, saved: Path) -> None:
    """If a restore brought back an old purge, responses purged since then would be valid again."""
    restore(saved, state_dir=tmp_path / "new")
    (first,) = run(purges(tmp_path / "new"))
    backup(tmp_path / "again.jsonl", state_dir=tmp_path / "new")
    assert first not in (tmp_path / "again.jsonl").read_text()
    restore(tmp_path / "again.jsonl", force=True, state_dir=tmp_path / "new")
    (second,) = run(purges(tmp_path / "new"))
    assert first != second


def test_purges_alone_make_a_store_empty(tmp_path: Path, saved: Path) -> None:
    async def purge() -> None:
        state = await open_state_store(None, tmp_path / "purged")
        await state.put(Kind.PURGE, "a", {"model": "a", "generation": "0" * 32})
        await state.close()

    run(purge())
    restore(saved, state_dir=tmp_path / "purged")
    assert "0" * 32 not in run(purges(tmp_path / "purged"))


def test_usage_alone_makes_a_store_not_empty(tmp_path: Path, saved: Path) -> None:
    async def use() -> None:
        usage = await open_usage_store(None, tmp_path / "used")
        await usage.add(UsageBatch("b", (USED,)))
        await usage.close()

    run(use())
    with pytest.raises(Conflict, match="0 objects and 1 usage sums"):
        restore(saved, state_dir=tmp_path / "used")


@pytest.mark.parametrize("force", [False, True])
def test_a_damaged_file_is_refused_before_anything_is_touched(tmp_path: Path, saved: Path, force: bool) -> None:
    saved.write_bytes(saved.read_bytes()[:-10])
    with pytest.raises(InvalidRequest, match=re.escape(f"{saved} is not restored: it is incomplete, or was changed")):
        restore(saved, force=force, state_dir=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_files_that_cannot_be_read_or_written_are_named(tmp_path: Path, saved: Path) -> None:
    with pytest.raises(InvalidRequest, match="missing cannot be read: No such file"):
        restore(tmp_path / "missing", state_dir=tmp_path / "new")
    with pytest.raises(InvalidRequest, match="nowhere/x cannot be written: No such file"):
        backup(tmp_path / "nowhere" / "x", state_dir=saved.parent / "full")


@pytest.mark.parametrize("place", [".", "/", "saved.jsonl/x", "x" * 300])
def test_a_place_where_no_file_can_be_is_named(saved: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(saved.parent)
    with pytest.raises(InvalidRequest, match=f"^{re.escape(place)} cannot be written: "):
        backup(Path(place), state_dir=saved.parent / "full")


def test_on_the_command_line_a_refusal_is_one_line(tmp_path: Path, saved: Path) -> None:
    command = [sys.executable, "-m", "control_plane", "restore", saved, "--state-dir", tmp_path / "full"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: the store is not empty")
    assert ended.stderr.count("\n") == 1
