"""One suite over every kind of cold source: a folder, fsspec's own memory, and S3 over its real protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import fsspec
import pytest

from control_plane.core.errors import ModelLoadFailed, ModelNotFound, StoreUnavailable
from control_plane.models.adapters.model_store import FsspecModelStore
from tests.s3_server import BUCKET, SECRET, S3Server, s3_server

ON = threading.Event()
"""A stop that is never set."""


class Place(Protocol):
    url: str

    def put(self, path: str, content: bytes) -> None: ...

    def delete(self, path: str) -> None: ...


class Folder:
    def __init__(self, folder: Path) -> None:
        self.url, self._folder = str(folder), folder
        folder.mkdir()

    def put(self, path: str, content: bytes) -> None:
        (self._folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self._folder / path).write_bytes(content)

    def delete(self, path: str) -> None:
        (self._folder / path).unlink()


class Memory:
    def __init__(self) -> None:
        self.url = "memory://cold"
        self._fs = fsspec.filesystem("memory")
        self._fs.makedirs("/cold", exist_ok=True)

    def put(self, path: str, content: bytes) -> None:
        self._fs.pipe_file(f"/cold/{path}", content)

    def delete(self, path: str) -> None:
        self._fs.rm_file(f"/cold/{path}")


class S3:
    def __init__(self, server: S3Server) -> None:
        self.url, self._server = f"s3://{BUCKET}/cold", server

    def put(self, path: str, content: bytes) -> None:
        self._server.put(f"cold/{path}", content)

    def delete(self, path: str) -> None:
        self._server.delete(f"cold/{path}")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        yield Folder(tmp_path / "cold")
    elif request.param == "memory":
        memory = Memory()
        yield memory
        memory._fs.rm("/cold", recursive=True)
    else:
        server: S3Server = request.getfixturevalue("server")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in server.environment().items():
                patch.setenv(name, value)
            yield S3(server)
        server.empty()


@pytest.fixture
def store(place: Place) -> Iterator[FsspecModelStore]:
    opened = FsspecModelStore(place.url)
    yield opened
    opened.close()


def test_names_are_the_folders_and_those_of_now(place: Place, store: FsspecModelStore) -> None:
    place.put("README.md", b"no model")
    place.put("b/config.pbtxt", b"b")
    place.put("a/1/model.onnx", b"a")
    place.put("A/1/model.onnx", b"another model")
    assert store.names(ON) == ["A", "a", "b"]
    place.put("c/config.pbtxt", b"c")
    assert store.names(ON) == ["A", "a", "b", "c"]


def test_a_folder_that_cannot_be_a_models_is_left_out_and_reported_once(
    place: Place, store: FsspecModelStore, caplog: pytest.LogCaptureFixture
) -> None:
    place.put("m\u00f6del/config.pbtxt", b"")
    place.put("good/config.pbtxt", b"")
    place.put(".hidden/config.pbtxt", b"")
    for _ in range(2):
        assert store.names(ON) == ["good"]
    (said,) = (record.getMessage() for record in caplog.records if record.name.startswith("control_plane"))
    assert said.startswith(f"'m\u00f6del' in model store {store.url} cannot be a model's name, which is 1-255 letters")


def test_a_model_is_its_files_at_every_depth(place: Place, store: FsspecModelStore) -> None:
    place.put("m/config.pbtxt", b"config")
    place.put("m/1/model.onnx", b"weights")
    place.put("m/1/fp32/deep.bin", b"")
    place.put("m/.git/config", b"no part of it")
    place.put("m2/config.pbtxt", b"a neighbour whose name begins alike")
    found = store.describe("m", ON)
    assert [(file.path, file.size) for file in found.files] == [("1/fp32/deep.bin", 0), ("1/model.onnx", 7), ("config.pbtxt", 6)]
    assert found.bytes == 13


def test_its_version_is_the_same_until_a_file_is_another_one(place: Place, store: FsspecModelStore) -> None:
    place.put("m/config.pbtxt", b"config")
    place.put("m/1/model.onnx", b"weights")
    first = store.describe("m", ON).version
    assert store.describe("m", ON).version == first
    place.put("m/1/model.onnx", b"WEIGHTS")
    second = store.describe("m", ON).version
    place.delete("m/1/model.onnx")
    assert len({first, second, store.describe("m", ON).version}) == 3


@pytest.mark.parametrize("name", ["none", "../m", "..", "m/1", "m\u00f6del", "", "a" * 300])
def test_what_is_not_there_or_no_name_is_not_found(place: Place, store: FsspecModelStore, name: str) -> None:
    place.put("m/1/model.onnx", b"weights")
    with pytest.raises(ModelNotFound):
        store.describe(name, ON)


def test_any_span_of_a_file_can_be_read(place: Place, store: FsspecModelStore) -> None:
    content = bytes(range(256)) * (5 << 12)  # 5 MiB: several requests of an object store
    place.put("m/1/model.onnx", content)
    for span in (range(len(content)), range(1, 7), range(len(content) - 1, len(content)), range(1 << 20, 3 << 20)):
        assert b"".join(store.read("m", "1/model.onnx", span, ON)) == content[span.start : span.stop]


@pytest.mark.parametrize("path", ["1/model.onnx", "1/none"])
def test_a_file_that_is_shorter_or_gone_has_changed(place: Place, store: FsspecModelStore, path: str) -> None:
    place.put("m/1/model.onnx", b"short")
    with pytest.raises(ModelLoadFailed, match=r"is shorter than it was|is gone"):
        store.read("m", path, range(2, 20), ON)


def test_nothing_is_read_any_more_once_it_is_told_to_stop(place: Place, store: FsspecModelStore) -> None:
    place.put("m/1/model.onnx", b"weights")
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoreUnavailable, match="the gateway is stopping"):
        store.read("m", "1/model.onnx", range(7), stop)


@pytest.fixture
def over_s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    yield server
    server.empty()


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        pytest.param("cold/m/../../etc/passwd", "leads out of the model's folder", id="above"),
        pytest.param("cold/m//x", "leads out of the model's folder, or nowhere", id="nameless folder"),
        pytest.param("cold/m/a\\b", "leads out of the model's folder", id="backslash"),
        pytest.param("cold/m/a\u202eb", "has characters that cannot be shown", id="turns the text around"),
        pytest.param("cold/m/" + "a" * 600, "is too long or too deep", id="too long"),
        pytest.param("cold/m/1", "is a file and a folder", id="a file and a folder"),
    ],
)
def test_a_key_that_no_folder_can_have_is_refused(over_s3: S3Server, key: str, reason: str) -> None:
    over_s3.put("cold/m/1/model.onnx", b"weights")
    over_s3.put(key, b"evil")
    store = FsspecModelStore(f"s3://{BUCKET}/cold")
    with pytest.raises(ModelLoadFailed, match=reason):
        store.describe("m", ON)
    store.close()


def test_objects_that_stand_for_folders_are_no_files(over_s3: S3Server) -> None:
    for key in ("cold/", "cold/m/", "cold/m/1/", "cold/m/1/model.onnx"):
        over_s3.put(key, b"")
    store = FsspecModelStore(f"s3://{BUCKET}/cold/")
    assert (store.names(ON), [file.path for file in store.describe("m", ON).files]) == (["m"], ["1/model.onnx"])
    store.close()


def test_a_listing_of_many_pages_is_whole(over_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    for number in range(10):
        over_s3.put(f"cold/m/1/{number}", b"")
        over_s3.put(f"cold/m{number}/1/x", b"")
    store = FsspecModelStore(f"s3://{BUCKET}/cold")
    assert (len(store.names(ON)), len(store.describe("m", ON).files)) == (11, 10)
    store.close()


def test_without_credentials_or_bucket_the_message_says_so_and_shows_none(over_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = FsspecModelStore("s3://no-such-bucket/cold")
    with pytest.raises(StoreUnavailable, match="model store s3://no-such-bucket/cold cannot be read: ") as refused:
        nowhere.names(ON)
    assert SECRET not in f"{refused.value!r}{refused.value.__cause__!r}{nowhere!r}"
    nowhere.close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    away = FsspecModelStore(f"s3://{BUCKET}/cold", call_timeout_s=2.0)
    with pytest.raises(StoreUnavailable, match="cannot be read: "):
        away.names(ON)
    away.close()
