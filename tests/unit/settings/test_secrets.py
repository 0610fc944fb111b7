"""Settings that hold secrets: where they may come from, and that nobody is shown them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane.core.errors import StartupError
from control_plane.core.text.redaction import without_user
from control_plane.settings import (
    effective,
    from_plain,
    load_settings,
    parse_triton_url,
    parse_triton_urls,
    to_plain,
)


def test_nobody_is_shown_a_password_in_a_triton_url() -> None:
    url = "http://user:secret@h:9000"
    for read in (parse_triton_url, parse_triton_urls):
        with pytest.raises(StartupError, match=re.escape("--triton-url 'http://...@h:9000': expected")) as caught:
            read(url)
        assert "secret" not in str(caught.value)
    assert effective(load_settings({"triton_url": url}))["triton_url"] == "http://...@h:9000"


@pytest.mark.parametrize(
    "password", ["s3,cret", "s3'cret", 's3"cret', "s3/cret", "s3//cret", "s3@cret", "s3?cret", "s3 cret", "\u2100cret"]
)
@pytest.mark.parametrize("before", ["", "http://h:1,"])
def test_whatever_it_is_made_of(password: str, before: str) -> None:
    urls = f"{before}http://user:{password}@h:9000"
    with pytest.raises(StartupError) as caught:
        parse_triton_urls(urls)
    assert "cret" not in str(caught.value)
    assert "s3" not in str(caught.value)
    assert without_user(urls) == f"{before}http://...@h:9000"


def test_a_state_url_is_masked_where_it_is_shown_and_whole_for_another_process() -> None:
    settings = load_settings({"state_url": "redis://:s3cret@h/0"})
    assert settings.state.state_url == SecretStr("redis://:s3cret@h/0")
    assert effective(settings)["state_url"] == "********"
    assert "s3cret" not in f"{settings} {settings!r}"
    assert from_plain(json.loads(json.dumps(to_plain(settings)))) == settings
    assert load_settings().state.state_url is None


def test_the_commands_key_is_masked_where_it_is_shown_and_no_other_process_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_API_KEY", "tg_s3cret")
    settings = load_settings()
    assert settings.admin.api_key == SecretStr("tg_s3cret")
    assert effective(settings)["api_key"] == "********"
    assert "s3cret" not in f"{settings} {settings!r} {to_plain(settings)}"


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:s3cret@bucket/models",
        "s3://key:s3cr/s3cret@bucket/models",
        "s3://key@bucket/s3cret",
        "s3://bucket/models?secret=s3cret",
        "http://user:s3cret@host:80/models",
        "filecache::s3://s3cret/models",
        "s3://key:s3cret",
    ],
)
def test_credentials_have_no_place_in_a_stores_url_and_nobody_is_shown_them(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    with pytest.raises(StartupError, match=r"^--model-store: leave credentials .* such as s3://BUCKET/PREFIX$") as told:
        load_settings({"model_store": ["/models", url]})
    assert "s3cret" not in str(told.value)
    monkeypatch.setenv("TIDEGATE_MODEL_STORE", f"/models,{url}")
    with pytest.raises(StartupError, match=r"^TIDEGATE_MODEL_STORE: leave credentials") as told:
        load_settings()
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize(
    "url", ["/models", "models", "s3://bucket", "s3://bucket/team@corp/models", "http://host:8080/models", "memory://x"]
)
def test_a_store_without_credentials_is_taken_as_it_is(url: str) -> None:
    assert load_settings({"model_store": [url]}).triton.model_store == [url]


@pytest.mark.parametrize("name", ["state_url", "events_url", "cache_url", "jobs_url"])
def test_a_secret_may_come_from_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(" redis://:password@h/0 \nanother line\n")
    settings = load_settings({f"{name}_file": file})
    read = {**vars(settings.state), **vars(settings.events), **vars(settings.cache), **vars(settings.jobs)}[name]
    assert read.get_secret_value() == "redis://:password@h/0"
    assert "password" not in repr(settings)
    assert from_plain(to_plain(settings)) == settings, "a worker has it too"
    by_value = load_settings({f"{name}_file": file, name: "redis://other"})
    assert {**vars(by_value.state), **vars(by_value.events), **vars(by_value.cache), **vars(by_value.jobs)}[
        name
    ].get_secret_value() == "redis://other"


@pytest.mark.parametrize("content", [None, b"", b"\nredis://second-line\n", b"\xff"], ids=["no file", "empty", "a blank line", "no UTF-8"])
def test_a_file_without_a_secret_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StartupError, match=r"--state-url-file: (cannot be read: No such file|has no text|is not UTF-8).*, got '.*secret'"):
        load_settings({"state_url_file": str(file)})


def test_the_api_key_may_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("tg_key\n")
    monkeypatch.setenv("TIDEGATE_API_KEY_FILE", str(tmp_path / "key"))
    key = load_settings().admin.api_key
    assert key is not None
    assert key.get_secret_value() == "tg_key"
