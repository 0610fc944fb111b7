"""Which folders of a source are models, and which of their versions Triton serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from control_plane.triton.adapters.model_folders import model_folders, newest_version


def test_folders_and_links_to_folders_are_models_and_nothing_else(tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden"):
        (tmp_path / "source" / name).mkdir(parents=True)
    (tmp_path / "source/c").symlink_to(tmp_path / "source/a")
    (tmp_path / "source/dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "source/file").touch()
    assert model_folders(tmp_path / "source") == [str(tmp_path / "source" / name) for name in "abc"]
    with pytest.raises(OSError, match="nowhere"):
        model_folders(tmp_path / "nowhere")


def test_the_newest_version_is_by_number(tmp_path: Path) -> None:
    assert newest_version(str(tmp_path)) is None
    for name in ("9", "10", "configs", "1a"):
        (tmp_path / name).mkdir()
    assert newest_version(str(tmp_path)) == f"{tmp_path}/10"
    with pytest.raises(OSError, match="nowhere"):
        newest_version(f"{tmp_path}/nowhere")
