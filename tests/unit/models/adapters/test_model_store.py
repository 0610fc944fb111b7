"""Model stores: what is particular to folders and URLs. All stores together are tested in
tests/contract/model_stores/test_model_store.py.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from control_plane.core.errors import ModelLoadFailed, StartupError, StoreUnavailable
from control_plane.models.adapters.model_store import FsspecModelStore

ON = threading.Event()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cold/m/1").mkdir(parents=True)
    (tmp_path / "cold/m/1/model.onnx").write_bytes(b"weights")
    return tmp_path / "cold"


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}"])
def test_a_folder_is_named_as_a_path_or_a_url(folder: Path, form: str) -> None:
    store = FsspecModelStore(form.format(folder))
    assert store.names(ON) == ["m"]
    assert [file.path for file in store.describe("m", ON).files] == ["1/model.onnx"]
    assert store.read("m", "1/model.onnx", range(1, 3), ON) == [b"ei"]


def test_a_folder_that_does_not_exist_is_an_error_at_start_and_one_that_vanishes_is_away(folder: Path) -> None:
    with pytest.raises(StartupError, match=r"--model-store .*/none is not a folder; name one whose subfolders are models"):
        FsspecModelStore(f"{folder}/none")
    store = FsspecModelStore(str(folder))
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(StoreUnavailable, match="does not exist, or is empty"):
        store.names(ON)


@pytest.mark.parametrize(
    "url", ["s3://key:secret@bucket/models", "s3://secret@bucket", "https://host/x?token=secret", "simplecache::s3://bucket/secret"]
)
def test_a_url_with_credentials_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(StartupError, match="leave credentials and options to the provider's own variables and files") as refused:
        FsspecModelStore(url)
    assert "secret@" not in str(refused.value)
    assert "=secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "reason"), [("nosuch://x", "nothing here reads nosuch://"), ("gs://bucket/x", r"needs a package that is missing \(.*gcsfs")]
)
def test_what_nothing_reads_is_told_at_start(url: str, reason: str) -> None:
    with pytest.raises(StartupError, match=reason):
        FsspecModelStore(url)


def test_a_link_to_a_file_of_the_store_is_that_file(folder: Path) -> None:
    (folder / "blobs").mkdir()
    (folder / "blobs/abc").write_bytes(b"linked weights")
    (folder / "m/1/linked.onnx").symlink_to("../../blobs/abc")
    store = FsspecModelStore(str(folder))
    [linked, _] = store.describe("m", ON).files
    assert (linked.path, linked.size) == ("1/linked.onnx", 14)
    assert store.read("m", "1/linked.onnx", range(14), ON) == [b"linked weights"]
    before = store.describe("m", ON).version
    (folder / "blobs/abc").write_bytes(b"other weights!")
    assert store.describe("m", ON).version != before


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../outside", "nowhere", "../1", "/dev/zero"])
def test_a_link_that_leads_elsewhere_is_refused(folder: Path, target: str) -> None:
    (folder.parent / "outside").write_text("secret")
    (folder / "m/1/link").symlink_to(target)
    with pytest.raises(ModelLoadFailed, match=r"1/link of model 'm' in model store .* is a link that leads to no file of the store"):
        FsspecModelStore(str(folder)).describe("m", ON)


def test_a_link_to_a_folder_is_no_model(folder: Path) -> None:
    (folder / "linked").symlink_to("/etc")
    assert FsspecModelStore(str(folder)).names(ON) == ["m"]


def test_what_cannot_be_opened_is_a_store_that_cannot_be_read(folder: Path) -> None:
    store = FsspecModelStore(str(folder))
    with pytest.raises(StoreUnavailable, match=r"model store .*/cold cannot be read: IsADirectoryError"):
        store.read("m", "1", range(3), ON)


def test_a_client_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own retries, with pauses between them, take longer than a call may."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    store = FsspecModelStore("s3://bucket/models", call_timeout_s=0.3)
    began_s = time.monotonic()
    with pytest.raises(StoreUnavailable, match="model store s3://bucket/models cannot be read"):
        store.names(ON)
    assert time.monotonic() - began_s < 10
    store.close()
