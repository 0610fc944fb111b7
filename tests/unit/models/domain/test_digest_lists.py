from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.models.domain.digest_lists import is_list, read_copy, read_list, write_copy
from control_plane.models.domain.model_source import WarmCopy, WarmFile

A, B = "a" * 64, "B" * 64


@pytest.mark.parametrize(
    ("path", "is_one"), [("SHA256SUMS", True), ("1/manifest.json", True), ("1/model.onnx", False), ("SHA256SUMS/x", False)]
)
def test_lists_are_known_by_their_names_in_any_folder(path: str, is_one: bool) -> None:
    assert is_list(path) is is_one


@pytest.mark.parametrize(
    ("path", "text", "digests"),
    [
        pytest.param("SHA256SUMS", f"{A}  1/x\n{B} *y z\n".encode(), {"1/x": A, "y z": B.lower()}, id="sums"),
        pytest.param("1/SHA256SUMS", f"# ours\n\n{A}  ./x\n".encode(), {"1/x": A}, id="sums in a folder"),
        pytest.param("SHA256SUMS", b"", {}, id="no sums"),
        pytest.param(
            "1/v/manifest.json", orjson.dumps({"artefacts": {"x": {"sha256": A, "size_bytes": 1}}}), {"1/v/x": A}, id="a recipe's"
        ),
        pytest.param("manifest.json", orjson.dumps({"artefacts": {"x": {"sha256": "no"}, "y": 3}}), {}, id="no digests"),
        pytest.param("manifest.json", orjson.dumps({"files": ["x"]}), {}, id="of another make"),
        pytest.param("manifest.json", b"[]", {}, id="no object"),
    ],
)
def test_a_list_is_read_by_path_within_the_model(path: str, text: bytes, digests: dict[str, str]) -> None:
    assert read_list(path, text) == digests


@pytest.mark.parametrize(
    ("path", "text"),
    [("SHA256SUMS", b"abc  x"), ("SHA256SUMS", f"{A}".encode()), ("SHA256SUMS", b"\xff"), ("manifest.json", b"{"), ("manifest.json", b"")],
)
def test_what_is_no_list_is_an_error(path: str, text: bytes) -> None:
    with pytest.raises(ValueError):
        read_list(path, text)


files = st.builds(WarmFile, path=st.text(min_size=1), size=st.integers(0, 2**50), mtime_ns=st.integers(0, 2**62), sha256=st.just(A))


@given(st.builds(WarmCopy, name=st.text(), version=st.text(), files=st.lists(files, max_size=4).map(tuple)))
def test_a_record_of_a_copy_comes_back_as_it_was(copy: WarmCopy) -> None:
    assert read_copy(write_copy(copy)) == copy


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b"3", b'{"format": 2}', b'{"format": 1, "name": "m"}', b'{"format":1,"name":"m","version":"v","files":[{}]}'],
)
def test_what_is_no_record_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        read_copy(text)
