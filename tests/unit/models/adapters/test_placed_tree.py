from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.errors import ModelLoadFailed
from control_plane.models.adapters.placed_tree import Tree, reconcile_tree, tree_of

LONG_AGO_NS = 1_600_000_000_000_000_000


def shape(folder: Path) -> dict[str, str]:
    """Return every path below a folder with the target of its link; an empty text for folders."""
    return {str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else "" for path in sorted(folder.rglob("*"))}


def times(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in (folder, *folder.rglob("*"))}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "1" / "variables").mkdir(parents=True)
    (source / "config.pbtxt").touch()
    (source / "1" / "model.onnx").touch()
    (source / "1" / "variables" / "data").touch()
    return source


@pytest.fixture
def placed(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "placed"
    assert not list(tmp_path.glob("**/*.new"))


def test_folders_are_real_and_files_are_links(source: Path, placed: Path) -> None:
    reconcile_tree(placed, tree_of(source))
    assert shape(placed) == {
        "1": "",
        "1/model.onnx": str(source / "1/model.onnx"),
        "1/variables": "",
        "1/variables/data": str(source / "1/variables/data"),
        "config.pbtxt": str(source / "config.pbtxt"),
    }


def test_nothing_is_touched_where_nothing_differs(source: Path, placed: Path) -> None:
    reconcile_tree(placed, tree_of(source))
    for path in (placed, *placed.rglob("*")):
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS), follow_symlinks=False)
    (source / "1" / ".model.onnx.building").touch()
    reconcile_tree(placed, tree_of(source))
    assert set(times(placed).values()) == {LONG_AGO_NS}


def test_only_the_folder_that_differs_is_touched(source: Path, placed: Path) -> None:
    reconcile_tree(placed, tree_of(source))
    for path in (placed, *placed.rglob("*")):
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS), follow_symlinks=False)
    (source / "1" / "vocabulary.txt").touch()
    reconcile_tree(placed, tree_of(source))
    touched = {str(Path(path).relative_to(placed)) for path, time in times(placed).items() if time != LONG_AGO_NS}
    assert touched == {"1", "1/vocabulary.txt"}


@pytest.mark.parametrize("hidden", [".git", ".1.building", "__pycache__", "model.pyc", "weights.tmp", "weights.partial"])
@pytest.mark.parametrize("where", [".", "1", "1/variables"])
def test_caches_and_unfinished_files_are_left_out_everywhere(source: Path, where: str, hidden: str) -> None:
    before = tree_of(source)
    (source / where / hidden).touch()
    assert tree_of(source) == before


@pytest.mark.parametrize(
    ("name", "kept_below"), [("build.py", True), ("README.md", True), ("samples", True), ("samples.json", True), ("labels.txt", False)]
)
def test_what_is_hidden_at_the_top_is_hidden_only_there(source: Path, name: str, kept_below: bool) -> None:
    hidden = ("*.py", "README*", "samples*")
    (source / name).touch()
    (source / "1" / name).touch()
    tree = tree_of(source, hidden_at_top=hidden)
    assert (name in tree.files) is not kept_below
    assert name in tree.folders["1"].files


def test_python_can_write_no_bytecode_beside_a_placed_model(source: Path, placed: Path) -> None:
    (source / "1" / "model.py").touch()
    reconcile_tree(placed, tree_of(source))
    assert shape(placed)["1/__pycache__"] == os.devnull
    assert "__pycache__" not in shape(placed)
    assert "1/variables/__pycache__" not in shape(placed)


@pytest.mark.parametrize("replaced_by", ["file", "folder", "link to a file", "link to a folder", "nothing"])
@pytest.mark.parametrize("path", ["1", "1/model.onnx", "config.pbtxt", "."])
def test_whatever_stands_there_gives_way_and_its_target_is_not_harmed(
    source: Path, placed: Path, tmp_path: Path, path: str, replaced_by: str
) -> None:
    reconcile_tree(placed, tree_of(source))
    expected = shape(placed)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("precious")
    _replace(placed / path, replaced_by, precious)
    reconcile_tree(placed, tree_of(source))
    assert shape(placed) == expected
    assert (precious / "file").read_text() == "precious"


def _replace(path: Path, by: str, precious: Path) -> None:
    path.rename(precious / "was")
    if by == "file":
        path.touch()
    elif by == "folder":
        (path / "foreign").mkdir(parents=True)
    elif by == "link to a file":
        path.symlink_to(precious / "file")
    elif by == "link to a folder":
        path.symlink_to(precious)


def test_links_in_the_source_are_followed_wherever_they_lead(source: Path, placed: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (blobs / "sha256-1").touch()
    (source / "1" / "weights.bin").symlink_to(blobs / "sha256-1")
    (source / "2").symlink_to(blobs)
    reconcile_tree(placed, tree_of(source))
    assert shape(placed)["1/weights.bin"] == str(blobs / "sha256-1")
    assert shape(placed)["2/sha256-1"] == str(blobs / "sha256-1")
    assert not (placed / "2").is_symlink()


def test_a_link_that_was_pointed_elsewhere_is_seen(source: Path, placed: Path, tmp_path: Path) -> None:
    link = source / "1" / "weights.bin"
    link.symlink_to(tmp_path / "old")
    reconcile_tree(placed, tree_of(source))
    link.unlink()
    link.symlink_to(tmp_path / "new")
    reconcile_tree(placed, tree_of(source))
    assert shape(placed)["1/weights.bin"] == str(tmp_path / "new")


def test_links_that_lead_nowhere_are_placed_for_triton_to_report(source: Path, placed: Path) -> None:
    (source / "1" / "dangling").symlink_to("/no/such/file")
    (source / "1" / "a").symlink_to("b")
    (source / "1" / "b").symlink_to("a")
    reconcile_tree(placed, tree_of(source))
    assert shape(placed)["1/dangling"] == "/no/such/file"
    assert {"1/a", "1/b"} < set(shape(placed))


@pytest.mark.parametrize("target", ["..", ".", "../1", "../../source"])
def test_a_folder_that_is_in_itself_is_named(source: Path, target: str) -> None:
    (source / "1" / "loop").symlink_to(target)
    with pytest.raises(ModelLoadFailed, match=r"source/1/loop is a link to a folder that it is in itself"):
        tree_of(source)


def test_a_folder_linked_twice_is_no_loop(source: Path) -> None:
    (source / "2").symlink_to("1")
    assert tree_of(source).folders["2"] == tree_of(source).folders["1"]


def test_a_source_that_went_and_a_place_that_cannot_be_written_are_named(source: Path, placed: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"nothing cannot be read: .*No such file"):
        tree_of(tmp_path / "nothing")
    placed.write_text("")
    with pytest.raises(ModelLoadFailed, match=r"placed/model cannot be written: .*Not a directory"):
        reconcile_tree(placed / "model", tree_of(source))


def test_with_folder_adds_one_and_leaves_the_original(source: Path) -> None:
    tree = tree_of(source)
    more = tree.with_folder("2")
    assert more.folders["2"] == Tree()
    assert "2" not in tree.folders
    assert more.files == tree.files


NAMES = st.sampled_from("abc")
TREES = st.recursive(
    st.builds(Tree, files=st.dictionaries(NAMES, st.sampled_from([Path("/x"), Path("/y")]))),
    lambda below: st.builds(
        lambda files, folders: Tree({name: to for name, to in files.items() if name not in folders}, folders),
        st.dictionaries(NAMES, st.sampled_from([Path("/x"), Path("/y")])),
        st.dictionaries(NAMES, below),
    ),
    max_leaves=6,
)


@given(trees=st.lists(TREES, min_size=1, max_size=4))
def test_any_tree_follows_any_other(tmp_path_factory: pytest.TempPathFactory, trees: list[Tree]) -> None:
    placed = tmp_path_factory.mktemp("placed") / "model"
    for tree in trees:
        reconcile_tree(placed, tree)
        assert _read_back(placed) == tree
        before = times(placed)
        reconcile_tree(placed, tree)
        assert times(placed) == before


def _read_back(folder: Path) -> Tree:
    tree = Tree()
    for path in folder.iterdir():
        if path.is_symlink():
            tree.files[path.name] = path.readlink()
        else:
            tree.folders[path.name] = _read_back(path)
    return tree
