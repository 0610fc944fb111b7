"""Discovery of recipes: the `build.py` of model folders, and the targets that they define."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path

from python_backends.export.recipe import BuildError, Recipe

RECIPE_FILENAME = "build.py"

# Every recipe makes version 1: a new version is a model with other answers; variants are the same model.
VERSION = "1"


@dataclass(frozen=True, slots=True)
class Target:
    """A build target: a variant of a model, or, if `variant` is empty, the whole model."""

    model_directory: Path
    variant: str
    recipe: Recipe

    @property
    def label(self) -> str:
        """Name of the target for users: `MODEL` or `MODEL/VARIANT`."""
        return f"{self.model_directory.name}/{self.variant}".rstrip("/")

    @property
    def directory(self) -> Path:
        """Directory of the built artefacts."""
        return self.model_directory / VERSION / self.variant


def find_model_directories(paths: Iterable[Path]) -> list[Path]:
    """Return the model folders that have a recipe: each path itself, or the folders in it, sorted by name.

    Raises:
        BuildError: A path has no recipe.
    """
    return [directory for path in paths for directory in _in(path)]


def load_targets(model_directory: Path) -> list[Target]:
    """Run the build.py of a model folder as a module, and return the targets that it defines."""
    loader = _UncachedLoader(f"recipe_of_{model_directory.name}", str(model_directory / RECIPE_FILENAME))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    recipes: Mapping[str, Recipe] = getattr(module, "RECIPES", None) or {"": module.RECIPE}
    return [Target(model_directory, variant, recipe) for variant, recipe in recipes.items()]


def only_variants(targets: Collection[Target], variants: Collection[str]) -> list[Target]:
    """Return the targets of the named variants; all targets if no variant is named.

    Raises:
        BuildError: No model has one of the variants.
    """
    known = {target.variant for target in targets if target.variant}
    if unknown := [variant for variant in variants if variant not in known]:
        raise BuildError(f"no variant {unknown[0]!r}: there are {', '.join(sorted(known)) or 'none'}")
    return [target for target in targets if not variants or target.variant in variants]


class _UncachedLoader(SourceFileLoader):
    """Module loader that writes no __pycache__ into a model's folder, which belongs to Triton."""

    def set_data(self, path: str, data: object, *, _mode: int = 0o666) -> None:
        """Write nothing, where the base class writes bytecode."""


def _in(path: Path) -> Iterator[Path]:
    candidates = [path] if (path / RECIPE_FILENAME).is_file() else sorted(path.glob(f"*/{RECIPE_FILENAME}"))
    if not candidates:
        raise BuildError(f"no {RECIPE_FILENAME} in '{path}' or in a folder in it")
    yield from (candidate if candidate.is_dir() else candidate.parent for candidate in candidates)
