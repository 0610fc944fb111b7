"""Mirror of a source folder: a tree of folders, links and a few files, and its reconciliation with a folder
on disk.

Used by `managed_repository`. It knows nothing of models but that modification times matter.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from control_plane.core.errors import ModelLoadFailed

_HIDDEN = (".*", "__pycache__", "*.pyc", "*.tmp", "*.partial")
"""Patterns left out at every level: caches, and files that a recipe has not finished."""

_BYTECODE = "__pycache__"


@dataclass(frozen=True, slots=True)
class Tree:
    """Desired contents of a folder: its files by name, each a link's target or a text of its own, and its
    subfolders.
    """

    files: dict[str, Path | str] = field(default_factory=dict)
    folders: dict[str, Tree] = field(default_factory=dict)

    def with_folder(self, name: str) -> Tree:
        """Return the tree with one more, empty folder."""
        return Tree(self.files, {**self.folders, name: Tree()})

    def with_text(self, path: Path, text: str) -> Tree:
        """Return the tree with this text as the file at the relative `path`."""
        first, *rest = path.parts
        if not rest:
            return Tree({**self.files, first: text}, self.folders)
        return Tree(self.files, {**self.folders, first: self.folders.get(first, Tree()).with_text(Path(*rest), text)})


def tree_of(source: Path, *, hidden_at_top: Sequence[str] = ()) -> Tree:
    """Read the tree of `source` without what is hidden; links in it are followed.

    Raises:
        ModelLoadFailed: a link leads to a folder that contains it, or a folder cannot be read.
    """
    try:
        return _tree_of(source, (*_HIDDEN, *hidden_at_top), ())
    except OSError as exc:
        raise ModelLoadFailed(f"{source} cannot be read: {exc}") from exc


def _tree_of(source: Path, hidden: Sequence[str], above: tuple[Path, ...]) -> Tree:
    """Read a folder recursively; `above` are the real folders on the way, to find loops of links."""
    real = source.resolve()
    if real in above:
        raise ModelLoadFailed(f"{source} is a link to a folder that it is in itself; remove it")
    tree = Tree()
    for entry in sorted(source.iterdir()):
        if any(fnmatchcase(entry.name, pattern) for pattern in hidden):
            continue
        if entry.is_dir():
            tree.folders[entry.name] = _tree_of(entry, _HIDDEN, (*above, real))
        else:
            # Unlike Path.resolve, os.path.realpath accepts a loop of links: opening the file reports it then.
            tree.files[entry.name] = Path(os.path.realpath(entry))
    if any(name.endswith(".py") for name in tree.files):
        # A stub would write bytecode here, whose time makes Triton reload the model. No variable can forbid
        # it, since a stub ignores PYTHON* (isolated mode). If this name is no folder, Python goes on without
        # writing bytecode.
        tree.files[_BYTECODE] = Path(os.devnull)
    return tree


def reconcile_tree(placed: Path, tree: Tree) -> None:
    """Make the folder `placed` mirror `tree`, touching only what differs. Raises ModelLoadFailed: it cannot
    be written.
    """
    try:
        _bring_in_line(placed, tree)
    except OSError as exc:
        raise ModelLoadFailed(f"{placed} cannot be written: {exc}") from exc


def _bring_in_line(placed: Path, tree: Tree) -> None:
    """Reconcile a folder with its tree: remove what is not in it, then write what differs."""
    if placed.is_symlink() or not placed.is_dir():
        placed.unlink(missing_ok=True)
        placed.mkdir(parents=True)
    for name in os.listdir(placed):
        if name not in tree.files and name not in tree.folders:
            remove(placed / name)
    for name, content in tree.files.items():
        if isinstance(content, Path):
            _link(placed / name, content)
        else:
            _write(placed / name, content)
    for name, folder in tree.folders.items():
        _bring_in_line(placed / name, folder)


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    remove(link)
    link.symlink_to(target)


def _write(file: Path, text: str) -> None:
    if not file.is_symlink() and file.is_file() and file.read_text(encoding="utf-8") == text:
        return
    remove(file)
    file.write_text(text, encoding="utf-8")


def remove(path: Path) -> None:
    """Remove a file, a link (not what it leads to) or a folder with all it holds; what is not there is no
    error.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
