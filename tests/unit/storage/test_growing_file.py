"""Files that are written piece by piece are there whole, or not at all."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from control_plane.storage.growing_file import GrowingFile
from tests.full_disk import full_disk


def test_a_file_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    file = GrowingFile(tmp_path)
    file.write(b"one")
    assert not (tmp_path / "content").exists()
    file.write(b"two" * (3 << 20))  # more than is flushed at once
    file.finish(tmp_path / "content")

    file.discard()

    assert (tmp_path / "content").read_bytes() == b"one" + b"two" * (3 << 20)
    assert [path.name for path in tmp_path.iterdir()] == ["content"]
    assert (tmp_path / "content").stat().st_mode & 0o077 == 0


def test_an_empty_file_is_one(tmp_path: Path) -> None:
    GrowingFile(tmp_path).finish(tmp_path / "content")
    assert (tmp_path / "content").read_bytes() == b""


def test_what_is_written_after_a_file_was_given_up_makes_none(tmp_path: Path) -> None:
    """Who waits is cancelled while a thread has yet to write."""
    begun, not_begun = GrowingFile(tmp_path), GrowingFile(tmp_path)
    begun.write(b"one")
    for file in (begun, not_begun):
        file.discard()
        file.write(b"two")
        file.finish(tmp_path / "content")

    assert list(tmp_path.iterdir()) == []


def test_nothing_stays_of_a_file_for_whose_end_the_disk_has_no_room(tmp_path: Path) -> None:
    file = GrowingFile(tmp_path)
    file.write(b"x" * 4000)  # which stay in the buffer
    with full_disk(), pytest.raises(OSError, match="File too large"):
        file.finish(tmp_path / "content")
    with full_disk(), suppress(OSError):
        file.discard()
    assert list(tmp_path.iterdir()) == []
