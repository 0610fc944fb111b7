"""Files of texts: which lines they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from control_plane.cli.common.texts import read_texts
from control_plane.core.errors import InvalidRequest


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        pytest.param(b"a\nb\n", ["a", "b"], id="lines"),
        pytest.param(b"a\r\n\r\nb", ["a", "b"], id="of Windows, with a blank one"),
        pytest.param("\ufeffa\n".encode(), ["a"], id="byte order mark"),
        pytest.param(
            "one\u2028text\x0cof\x85one\x1cline\rall of it\n".encode(), ["one\u2028text\x0cof\x85one\x1cline\rall of it"], id="separators"
        ),
    ],
)
def test_a_text_is_a_line(tmp_path: Path, content: bytes, texts: list[str]) -> None:
    (tmp_path / "texts").write_bytes(content)
    assert read_texts(tmp_path / "texts") == texts


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff", None])
def test_a_file_without_any_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "texts").write_bytes(content)
    with pytest.raises(InvalidRequest, match="--file"):
        read_texts(tmp_path / "texts")
