"""Folders that the embedded Triton searches: its backend directory, and the packages that stubs import.

They have links and no copies, since a stub finds its libraries relative to its real path.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

_PYTHON = "python"


def assemble_backends(directory: Path, *, python_backend: Path, python_backends: Path, others: Path | None = None) -> None:
    """Make `directory` hold the `python` backend, the folders of `others`, and every folder of `python_backends` that has a
    `model.py` and whose name is free; nothing else.

    `others` are a Triton's own backends: its `onnxruntime` computes on the GPU, and for ours no such build may be installed.
    """
    ours = {_PYTHON: python_backend, **{backend.name: backend for backend in python_based(python_backends)}}
    _make_links(directory, ours | {each.name: each for each in _folders(others)})


def assemble_imports(directory: Path, python_backends: Path) -> None:
    """Make `directory` hold the package that our backends import from, and nothing else.

    It is made for Triton's working directory, which a stub imports from: the first entry of its `sys.path` is
    empty, and no variable could add another one.
    """
    _make_links(directory, {python_backends.name: python_backends})


def backend_names(python_backends: Path, others: Path | None = None) -> frozenset[str]:
    """Return the names of the backends that `assemble_backends` makes of the same folders."""
    return frozenset({_PYTHON, *(backend.name for backend in (*python_based(python_backends), *_folders(others)))})


def python_based(python_backends: Path) -> Iterator[Path]:
    """Yield the folders that are Python-based backends; the other folders are packages that these share."""
    if python_backends.is_dir():
        yield from sorted(model.parent for model in python_backends.glob("*/model.py"))


def _folders(parent: Path | None) -> list[Path]:
    return [] if parent is None else sorted(each for each in parent.iterdir() if each.is_dir())


def _make_links(directory: Path, links: Mapping[str, Path]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name, target in links.items():
        (directory / name).symlink_to(target)
