"""Files that only this user reads, and what is flushed to the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from control_plane.storage.durable_files import flush_to_disk, open_private


def test_a_file_is_readable_by_its_user_only(tmp_path: Path) -> None:
    with open(tmp_path / "file", "xb", opener=open_private):
        pass
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_files_and_folders_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    file = tmp_path / "file"
    file.touch()

    flush_to_disk(file)
    flush_to_disk(tmp_path)

    assert flushed == [str(file), str(tmp_path)]
    with pytest.raises(FileNotFoundError):
        flush_to_disk(tmp_path / "none")
