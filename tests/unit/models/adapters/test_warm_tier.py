from __future__ import annotations

import hashlib
import os
import resource
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.core.errors import ModelLoadFailed, StartupError, StoreUnavailable
from control_plane.models.adapters.warm_tier.tier import DiskWarmTier
from control_plane.models.domain.model_source import ModelSource, SourceFile, WarmCopy

ON = threading.Event()
FILES = {"config.pbtxt": b"config", "1/model.onnx": bytes(range(256)), "1/empty": b""}


def source(files: dict[str, bytes] = FILES, name: str = "m", **fields: str) -> ModelSource:
    listed = (SourceFile(path, len(content), hashlib.sha256(content).hexdigest(), **fields) for path, content in files.items())
    return ModelSource(name, tuple(listed))


class Reader:
    """Fake read of a file that breaks off after `most` bytes; `asked` records the spans."""

    def __init__(self, content: bytes, most: int = 1 << 30) -> None:
        self.content, self.most, self.asked = content, most, list[range]()

    def __call__(self, span: range) -> Sequence[bytes]:
        self.asked.append(span)
        if span.stop > self.most:
            raise StoreUnavailable("broken")
        return [self.content[span.start : span.stop]]


def opened(folder: Path, **options: int) -> DiskWarmTier:
    tier = DiskWarmTier(folder / "warm", max_bytes=1000, **options)
    tier.open()
    return tier


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskWarmTier]:
    made = opened(tmp_path, chunk_bytes=100)
    yield made
    made.close()


def hold(tier: DiskWarmTier, files: dict[str, bytes] = FILES, name: str = "m") -> WarmCopy:
    partial = tier.start_fetch(source(files, name))
    for file in source(files, name).files:
        partial.fetch(file, Reader(files[file.path]), ON)
    return partial.finish()


def reopened(tier: DiskWarmTier) -> list[WarmCopy]:
    tier.close()
    return tier.open()


def test_making_one_writes_nothing(tmp_path: Path) -> None:
    DiskWarmTier(tmp_path / "warm", max_bytes=1)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_is_the_files_with_their_digests_and_nothing_of_it_is_seen_before(tier: DiskWarmTier) -> None:
    partial = tier.start_fetch(source())
    for file in source().files:
        assert not tier.path("m").exists()
        partial.fetch(file, Reader(FILES[file.path]), ON)
    copy = partial.finish()
    assert {path: (tier.path("m") / path).read_bytes() for path in FILES} == FILES
    assert {file.path: file.sha256 for file in copy.files} == {path: hashlib.sha256(content).hexdigest() for path, content in FILES.items()}
    assert (copy.bytes, partial.done_bytes, partial.new_bytes) == (262, 262, 262)
    assert tier.use(copy)
    assert tier.is_sound(copy, ON)


def test_a_break_loses_one_chunk_at_most_in_this_life_and_the_next(tier: DiskWarmTier) -> None:
    big = source().files[1]
    with pytest.raises(StoreUnavailable):
        tier.start_fetch(source()).fetch(big, Reader(FILES[big.path], most=200), ON)
    reopened(tier)
    assert tier.partial_bytes(["m"]) == 0
    assert tier.partial_bytes([]) == 200
    second, reader = tier.start_fetch(source()), Reader(FILES[big.path])
    second.fetch(big, reader, ON)
    assert reader.asked == [range(200, 256)]
    assert (second.new_bytes, second.done_bytes) == (56, 256)


def test_what_was_brought_of_another_version_or_before_the_machine_started_is_not_gone_on_with(tier: DiskWarmTier) -> None:
    big = source().files[1]
    tier.start_fetch(source()).fetch(big, Reader(FILES[big.path]), ON)
    [folder] = (tier.folder / ".tidegate/partial/m").iterdir()
    for name in ("0" * 24 + folder.name[24:], folder.name[:24] + "-earlier0"):
        other = folder.with_name(name)
        shutil.copytree(folder, other)
        tier.start_fetch(source())
        assert [left.name for left in folder.parent.iterdir()] == [folder.name]


def test_what_is_longer_than_it_should_be_begins_anew(tier: DiskWarmTier) -> None:
    partial, file = tier.start_fetch(source()), source().files[0]
    [folder] = (tier.folder / ".tidegate/partial/m").iterdir()
    (folder / file.path).write_bytes(b"much longer than the configuration")
    partial.fetch(file, Reader(b"config"), ON)
    assert (folder / file.path).read_bytes() == b"config"


def test_what_is_not_as_listed_is_removed_and_can_come_right(tier: DiskWarmTier) -> None:
    listed = source().with_digests({"config.pbtxt": hashlib.sha256(b"config").hexdigest()})
    partial, file = tier.start_fetch(listed), listed.files[0]
    with pytest.raises(ModelLoadFailed, match=r"config.pbtxt of model 'm' has the SHA-256 \w{64}, not \w{64} as its source's list says"):
        partial.fetch(file, Reader(b"cOnfig"), ON)
    assert partial.done_bytes == 0
    partial.fetch(file, Reader(b"config"), ON)
    assert partial.done_bytes == 6


def test_an_etag_that_is_no_md5_is_believed_when_two_transfers_agree(tier: DiskWarmTier, caplog: pytest.LogCaptureFixture) -> None:
    file = SourceFile("x", 6, "e", md5="0" * 32)
    partial = tier.start_fetch(ModelSource("m", (file,)))
    for content in (b"config", b"cOnfig"):
        with pytest.raises(ModelLoadFailed, match="is not what its etag says, if that is an MD5"):
            partial.fetch(file, Reader(content), ON)
    partial.fetch(file, Reader(b"cOnfig"), ON)
    assert "is twice the same, and not as its etag says" in caplog.text


def test_a_right_etag_is_enough(tier: DiskWarmTier) -> None:
    file = SourceFile("x", 6, "e", md5=hashlib.md5(b"config").hexdigest())
    tier.start_fetch(ModelSource("m", (file,))).fetch(file, Reader(b"config"), ON)


def test_it_stops_when_told_to(tier: DiskWarmTier) -> None:
    stop, file = threading.Event(), source().files[1]

    def read(span: range) -> Sequence[bytes]:
        stop.set()
        return [bytes(len(span))]

    with pytest.raises(StoreUnavailable, match="stopping"):
        tier.start_fetch(source()).fetch(file, read, stop)
    assert not tier.is_sound(hold(tier, name="held"), stop)


def test_a_disk_that_takes_no_more_is_told_with_the_folder(tier: DiskWarmTier) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    partial = tier.start_fetch(source())
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, hard))
    try:
        with pytest.raises(StoreUnavailable, match=r"--warm-dir .*/warm cannot be written: File too large"):
            partial.fetch(source().files[1], Reader(FILES["1/model.onnx"]), ON)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    tier.drop_partial("m")
    assert tier.partial_bytes([]) == 0


def test_the_next_life_takes_over_what_is_as_it_was_least_recently_used_first(tier: DiskWarmTier) -> None:
    first, second = hold(tier, name="a"), hold(tier, name="b")
    for number, copy in enumerate((second, first)):
        os.utime(tier.folder / f".tidegate/copies/{copy.name}.json", (number, number))
    assert reopened(tier) == [second, first]
    assert tier.use(second)
    assert reopened(tier) == [first, second]


def touch(path: Path) -> None:
    os.utime(path / "config.pbtxt", (1, 1))


def make_link(path: Path) -> None:
    (path / "config.pbtxt").unlink()
    (path / "config.pbtxt").symlink_to("/etc/passwd")


def move_away(path: Path) -> None:
    elsewhere = path.parent.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(touch, id="another time"),
        pytest.param(lambda path: (path / "1/model.onnx").write_bytes(b"short"), id="another size"),
        pytest.param(lambda path: (path / "1/empty").unlink(), id="one less"),
        pytest.param(lambda path: (path / "1/more").touch(), id="one more"),
        pytest.param(make_link, id="a link"),
        pytest.param(move_away, id="a link in place of the folder"),
        pytest.param(shutil.rmtree, id="gone"),
    ],
)
def test_a_copy_that_is_not_as_it_was_is_not_used_and_removed_at_the_next_start(tier: DiskWarmTier, change: Callable[[Path], None]) -> None:
    copy, other = hold(tier), hold(tier, name="other")
    change(tier.path("m"))
    assert not tier.use(copy)
    assert reopened(tier) == [other]
    assert not tier.path("m").exists()
    assert Path("/etc/passwd").exists()


def test_a_flipped_byte_that_left_the_time_alone_is_seen_by_the_digest(tier: DiskWarmTier) -> None:
    copy, path = hold(tier), tier.path("m") / "config.pbtxt"
    state = path.stat()
    path.write_bytes(b"cOnfig")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert tier.use(copy)
    assert not tier.is_sound(copy, ON)


@pytest.mark.parametrize("record", [b"", b"{}", b'{"format": 1, "name": "../../x", "version": "", "files": []}'])
def test_a_record_that_is_none_is_removed(tier: DiskWarmTier, record: bytes) -> None:
    (tier.folder / ".tidegate/copies/m.json").write_bytes(record)
    assert reopened(tier) == []
    assert not (tier.folder / ".tidegate/copies/m.json").exists()


def test_an_end_between_record_and_folder_leaves_what_was_fetched(tier: DiskWarmTier) -> None:
    partial = tier.start_fetch(source())
    for file in source().files:
        partial.fetch(file, Reader(FILES[file.path]), ON)
    (tier.folder / ".tidegate/copies/m.json").write_bytes(b'{"format": 1, "name": "m", "version": "v", "files": []}')
    assert reopened(tier) == []
    again = tier.start_fetch(source())
    for file in source().files:
        again.fetch(file, Reader(b"", most=-1), ON)  # nothing is asked for
    assert tier.use(again.finish())


def test_a_new_copy_takes_the_place_of_the_old_one_under_those_who_have_it_open(tier: DiskWarmTier) -> None:
    hold(tier)
    with (tier.path("m") / "config.pbtxt").open("rb") as old:
        copy = hold(tier, {"config.pbtxt": b"newer"})
        assert old.read() == b"config"
    assert [str(path.relative_to(tier.path("m"))) for path in tier.path("m").rglob("*")] == ["config.pbtxt"]
    assert reopened(tier) == [copy]


def test_nothing_is_left_of_what_is_removed(tier: DiskWarmTier) -> None:
    hold(tier)
    tier.remove("m")
    tier.remove("m")
    assert [path for path in tier.folder.rglob("*") if path.is_file() and path.name != "lock"] == []


def test_one_process_has_a_folder(tier: DiskWarmTier) -> None:
    second = DiskWarmTier(tier.folder, max_bytes=1)
    with pytest.raises(StartupError, match=f"in use by tidegate with pid {os.getpid()}; stop it or choose another"):
        second.open()
    tier.close()
    second.open()
    second.close()


def test_a_folder_of_other_things_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "warm/precious").mkdir(parents=True)
    with pytest.raises(StartupError, match="holds 'precious', which is no warm copy; choose an empty folder"):
        opened(tmp_path)
    assert (tmp_path / "warm/precious").is_dir()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "warm").write_text("a file")
    with pytest.raises(StartupError, match=r"--warm-dir .* cannot be written: .*; choose another"):
        opened(tmp_path)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 257), max_size=6))
def test_however_often_it_breaks_off_what_comes_out_is_whole(tmp_path_factory: pytest.TempPathFactory, breaks: list[int]) -> None:
    tier = opened(tmp_path_factory.mktemp("tier"), chunk_bytes=37)
    file, content = source().files[1], FILES["1/model.onnx"]
    for most in breaks:
        partial = tier.start_fetch(source())
        try:
            partial.fetch(file, Reader(content, most), ON)
        except StoreUnavailable:
            reopened(tier)
    copy = hold(tier)
    assert tier.is_sound(copy, ON)
    assert (tier.path("m") / file.path).read_bytes() == content
    tier.close()
