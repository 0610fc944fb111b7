from __future__ import annotations

import logging
from pathlib import Path

import pytest

from control_plane.core.errors import StoreUnavailable
from control_plane.metering.adapters.usage_spill import UsageSpillFolder
from control_plane.metering.domain.usage import Usage, UsageBatch, UsageKey


def batch(batch_id: str, size: int = 2) -> UsageBatch:
    return UsageBatch(batch_id, tuple((UsageKey("2023-11-15", "t", f"m{number}"), Usage(requests=1)) for number in range(size)))


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_later_process_finds_batches_in_order_as_they_were(tmp_path: Path) -> None:
    sent = [batch(f"{9 - number}", size=number + 1) for number in range(5)]
    first = UsageSpillFolder(tmp_path / "usage-spill")
    for each in sent[:3]:
        first.write(each)
    second = UsageSpillFolder(tmp_path / "usage-spill")
    for each in sent[3:]:
        second.write(each)
    assert list(UsageSpillFolder(tmp_path / "usage-spill").batches()) == sent


def test_what_is_removed_is_gone_and_nothing_else(tmp_path: Path) -> None:
    spill = UsageSpillFolder(tmp_path)
    for batch_id in ("a", "b", "ab"):
        spill.write(batch(batch_id))
    for _ in range(2):
        spill.remove(batch("b"))
        assert [each.id for each in spill.batches()] == ["a", "ab"]


def test_batches_can_be_removed_while_they_are_gone_through(tmp_path: Path) -> None:
    spill = UsageSpillFolder(tmp_path)
    for batch_id in ("a", "b", "c"):
        spill.write(batch(batch_id))
    found = []
    for each in spill.batches():
        found.append(each.id)
        spill.remove(each)
        UsageSpillFolder(tmp_path).remove(batch("b"))  # another worker is a step ahead
    assert found == ["a", "c"]
    assert names(tmp_path) == []


def test_the_folder_is_looked_through_once_for_all(tmp_path: Path) -> None:
    class Noting(UsageSpillFolder):
        looks = 0

        def _files(self, batch_id: str) -> list[Path]:
            self.looks += 1
            return super()._files(batch_id)

    spill = Noting(tmp_path)
    for number in range(10):
        spill.write(batch(f"{number}"))
    for each in spill.batches():
        spill.remove(each)
    assert (spill.looks, names(tmp_path)) == (1, [])


def test_without_a_folder_there_is_nothing(tmp_path: Path) -> None:
    spill = UsageSpillFolder(tmp_path / "none")
    assert list(spill.batches()) == []
    spill.remove(batch("a"))
    assert not (tmp_path / "none").exists()


def test_what_cannot_be_read_stays_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spill = UsageSpillFolder(tmp_path)
    spill.write(batch("a"))
    broken, old = tmp_path / "00000000000000000001-broken.json", tmp_path / "00000000000000000003-old.json"
    broken.write_bytes(b'{"id":')
    old.write_bytes(b'{"id":"old","events":[]}')
    (tmp_path / "00000000000000000002-cut.partial").write_bytes(b"")
    with caplog.at_level(logging.ERROR):
        assert [each.id for each in spill.batches()] == ["a"]
    for file, told in zip((broken, old), caplog.messages, strict=True):
        assert f"{file} cannot be read, and is not counted" in told
        assert file.exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        UsageSpillFolder(tmp_path / "file").write(batch("a"))


def test_only_its_owner_sees_it(tmp_path: Path) -> None:
    UsageSpillFolder(tmp_path / "usage-spill").write(batch("a"))
    assert (tmp_path / "usage-spill").stat().st_mode & 0o777 == 0o700
