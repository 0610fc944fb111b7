"""What the embedded Triton finds by folder: its backend directory, and the packages that stubs import.

Links, not copies: a stub finds its libraries relative to its real path.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

_PYTHON = "python"


def assemble_backends(directory: Path, *, python_backend: Path, python_backends: Path) -> None:
    """Make `directory` hold the `python` backend and every folder of `python_backends` that has a `model.py`, no others."""
    _make_links(directory, {_PYTHON: python_backend, **{backend.name: backend for backend in python_based(python_backends)}})


def assemble_imports(directory: Path, python_backends: Path) -> None:
    """Make `directory` hold the package that our backends import from, and nothing else.

    It is to be Triton's working directory: the first entry of a stub's `sys.path` is empty, and no variable adds one.
    """
    _make_links(directory, {python_backends.name: python_backends})


def backend_names(python_backends: Path) -> frozenset[str]:
    """Those that `assemble_backends` puts together of the same folder."""
    return frozenset({_PYTHON, *(backend.name for backend in python_based(python_backends))})


def python_based(python_backends: Path) -> Iterator[Path]:
    """The folders that are Python-based backends; the others are packages that these share."""
    if python_backends.is_dir():
        yield from sorted(model.parent for model in python_backends.glob("*/model.py"))


def _make_links(directory: Path, links: Mapping[str, Path]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name, target in links.items():
        (directory / name).symlink_to(target)
