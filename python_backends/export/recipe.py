"""What a recipe is, and how recipes are found; `model_repository/<model>/build.py` offers one as `RECIPE`."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from python_backends.export.progress import Progress

RECIPE_FILENAME = "build.py"

Agreement = Mapping[str, Mapping[str, float]]
"""Check -> measure -> value: what a build measured between its artefacts and their reference."""


class BuildError(Exception):
    """A recipe cannot run or its result is not good enough; its text is the one sentence that the user sees."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where weights come from: the published name, the package and version they were read from, their licence and SHA-256."""

    name: str
    package: str
    licence: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the artefacts of one model version are made.

    `build` writes them into the folder it is given, reports its steps, and returns what it measured; it raises BuildError where the result
    must not be served. The rest is what the result depends on: `libraries` by their installed versions, `sources` by their content (the
    build.py itself and whatever else shapes the result), `settings` by value.
    """

    build: Callable[[Path, Progress], Agreement]
    provenance: Provenance
    libraries: tuple[str, ...]
    sources: tuple[Path, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    def inputs(self) -> dict[str, str]:
        """Everything the artefacts depend on, by a name that can be shown to a user; libraries that are not installed are left out."""
        installed = {name: _installed_version(name) for name in self.libraries}
        return {
            "weights": self.provenance.sha256,
            **{f"setting {name}": value for name, value in self.settings.items()},
            **{f"source {path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in self.sources},
            **{f"library {name}": number for name, number in installed.items() if number},
        }

    def require_libraries(self) -> None:
        """Check that the recipe can run.

        Raises:
            BuildError: A library is not installed.
        """
        if missing := [name for name in self.libraries if not _installed_version(name)]:
            raise BuildError(f"{', '.join(missing)} must be installed to build it: run `pip install -e .[build]`")


def find_model_directories(paths: Iterable[Path]) -> list[Path]:
    """The model folders that have a recipe: each path itself, or the folders in it, in order of name.

    Raises:
        BuildError: A path has none.
    """
    return [directory for path in paths for directory in _in(path)]


def load_recipe(model_directory: Path) -> Recipe:
    """The RECIPE of a model folder's build.py, which is run as a module of its own."""
    loader = _UncachedLoader(f"recipe_of_{model_directory.name}", str(model_directory / RECIPE_FILENAME))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    recipe = module.RECIPE
    assert isinstance(recipe, Recipe)
    return recipe


class _UncachedLoader(SourceFileLoader):
    """Leaves no __pycache__ in a model's folder, which belongs to Triton."""

    def set_data(self, path: str, data: object, *, _mode: int = 0o666) -> None:
        """Where the base class writes bytecode."""


def _in(path: Path) -> Iterator[Path]:
    candidates = [path] if (path / RECIPE_FILENAME).is_file() else sorted(path.glob(f"*/{RECIPE_FILENAME}"))
    if not candidates:
        raise BuildError(f"no {RECIPE_FILENAME} in '{path}' or in a folder in it")
    yield from (candidate if candidate.is_dir() else candidate.parent for candidate in candidates)


def _installed_version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
