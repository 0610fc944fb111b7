from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane.core.errors import StartupError
from control_plane.storage.store_record import StoreRecord, read_store_record, write_store_record

PASSWORD = "swordfish"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        pytest.param(None, StoreRecord("", is_whole=True), id="SQLite"),
        pytest.param("redis://h", StoreRecord("redis://h:6379/0", is_whole=True), id="a Redis"),
        pytest.param("redis://[::1]:7000/3", StoreRecord("redis://[::1]:7000/3", is_whole=True), id="all that a place has"),
        pytest.param(f"redis://:{PASSWORD}@h:1/2", StoreRecord("redis://h:1/2", is_whole=False), id="with a password"),
        pytest.param(f"redis://user:{PASSWORD}%40x@h", StoreRecord("redis://h:6379/0", is_whole=False), id="with a user"),
        pytest.param(
            "rediss://h?ssl_ca_certs=/a/b.pem", StoreRecord("rediss://h:6379/0", is_whole=False), id="with options, which may be secret"
        ),
    ],
)
def test_what_is_written_has_no_secrets(tmp_path: Path, url: str | None, expected: StoreRecord) -> None:
    write_store_record(tmp_path, None if url is None else SecretStr(url))
    assert read_store_record(tmp_path) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["store.json"]
    assert PASSWORD not in (tmp_path / "store.json").read_text()


def test_the_latest_counts(tmp_path: Path) -> None:
    write_store_record(tmp_path, SecretStr("redis://h"))
    write_store_record(tmp_path, None)
    assert read_store_record(tmp_path) == StoreRecord("", is_whole=True)


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"state": "x"}', "no json", "{" * 100_000])
def test_what_cannot_be_read_says_nothing(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "store.json").write_text(content)
    assert read_store_record(tmp_path) is None


def test_what_is_no_redis_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(StartupError):
        write_store_record(tmp_path, SecretStr("http://h"))
    assert read_store_record(tmp_path) is None
