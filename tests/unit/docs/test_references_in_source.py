"""What docstrings and comments name by its path is there: a name that has moved on would send a reader searching."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_PACKAGES = ("control_plane", "python_backends")
_REFERENCE = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+)((?:\.[A-Za-z_]+)*)`")
_NO_MODULES = frozenset(("models/status", "triton/repository"))
"""A subresource of Kubernetes, and a folder that a node makes."""


def _references(source: Path) -> Iterator[tuple[str, list[str]]]:
    for path, names in _REFERENCE.findall(source.read_text()):
        if path not in _NO_MODULES:
            yield path, [name for name in names.split(".") if name not in ("", "py", "h")]


def _named(path: str, source: Path) -> Path | None:
    """The module or folder that a reference means: below a package, or below a folder that holds the source."""
    places = [*(_ROOT / package for package in _PACKAGES), *source.parents[: len(source.relative_to(_ROOT).parts)]]
    return next((found for place in places for found in (place / f"{path}.py", place / path) if found.exists()), None)


def _is_ours(path: str, source: Path) -> bool:
    """Whether a path begins with a folder of ours, as names of objects and of others' files do not."""
    first = path.partition("/")[0]
    return any((folder / first).is_dir() for folder in (*(_ROOT / package for package in _PACKAGES), source.parent))


def test_every_module_and_name_that_a_docstring_refers_to_exists() -> None:
    lost = []
    for source in (each for package in _PACKAGES for each in sorted((_ROOT / package).rglob("*.py"))):
        for path, names in _references(source):
            found = _named(path, source)
            if found is None:
                lost += [f"{source.relative_to(_ROOT)}: {path}"] if _is_ours(path, source) else []
            elif found.suffix == ".py":
                text = found.read_text()
                lost += [f"{source.relative_to(_ROOT)}: {path}.{name}" for name in names if not _defines(text, name)]

    assert not lost


def _defines(text: str, name: str) -> bool:
    return re.search(rf"(?:class|def) {name}\b|\b{name}(?:: [^\n]+)? = |^ +(?:self\.)?{name}: ", text, re.MULTILINE) is not None
