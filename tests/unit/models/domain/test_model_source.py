from __future__ import annotations

import pytest

from control_plane.models.domain.model_source import ModelSource, SourceFile, refusal


def file(path: str, size: int = 1, identity: str = "e") -> SourceFile:
    return SourceFile(path, size, identity)


def test_bytes_are_those_of_all_files() -> None:
    assert ModelSource("m", (file("a", 3), file("1/b", 4))).bytes == 7


@pytest.mark.parametrize(
    "other",
    [
        pytest.param((file("a", identity="f"),), id="another etag"),
        pytest.param((file("a", size=2),), id="another size"),
        pytest.param((file("b"),), id="another name"),
        pytest.param((file("a"), file("b")), id="one more"),
        pytest.param((), id="none"),
    ],
)
def test_a_version_is_another_one_whenever_a_file_is(other: tuple[SourceFile, ...]) -> None:
    assert ModelSource("m", (file("a"),)).version == ModelSource("m", (file("a"),)).version != ModelSource("m", other).version


def test_digests_of_a_list_change_no_version() -> None:
    source = ModelSource("m", (file("a"), file("b")))
    listed = source.with_digests({"a": "0" * 64, "elsewhere": "1" * 64})
    assert [each.sha256 for each in listed.files] == ["0" * 64, None]
    assert listed.version == source.version


def test_ordinary_paths_are_a_models() -> None:
    assert (
        refusal((file("config.pbtxt"), file("1/model.onnx"), file("1/fp32/..weights"), file("configs/gpu.pbtxt"), file("b\u00e4r"))) is None
    )


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        pytest.param([], "it holds no files", id="empty"),
        pytest.param(["../x"], "'../x' leads out of the model's folder, or nowhere", id="above"),
        pytest.param(["1/../../x"], "leads out", id="above from within"),
        pytest.param(["/etc/passwd"], "leads out", id="absolute"),
        pytest.param(["a//b"], "leads out", id="nameless"),
        pytest.param(["a/./b"], "leads out", id="dot"),
        pytest.param(["a\\b"], "leads out", id="backslash"),
        pytest.param(["a\0b"], "cannot be shown", id="NUL"),
        pytest.param(["a\nb"], "cannot be shown", id="line break"),
        pytest.param(["a" * 256], "too long", id="long name"),
        pytest.param(["a/" * 16 + "b"], "too long or too deep", id="deep"),
        pytest.param(["1", "1/model.onnx"], "'1' is a file and a folder", id="both"),
        pytest.param([str(number) for number in range(10_001)], "more than 10000 files", id="many"),
    ],
)
def test_what_no_folder_can_hold_is_refused(paths: list[str], reason: str) -> None:
    assert reason in str(refusal(tuple(map(file, paths))))
