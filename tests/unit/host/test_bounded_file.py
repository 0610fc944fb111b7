from __future__ import annotations

from pathlib import Path

import pytest

from control_plane.host.bounded_file import read_bounded


def test_a_file_at_its_limit_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert read_bounded(tmp_path / "file", 3) == b"abc"


def test_a_larger_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abcd")
    with pytest.raises(ValueError, match=r"^is larger than 3 bytes$"):
        read_bounded(tmp_path / "file", 3)


def test_what_has_no_end_is_refused() -> None:
    with pytest.raises(ValueError, match="larger than 16384"):
        read_bounded(Path("/dev/zero"), 2**14)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_bounded(tmp_path / "file", 3)
