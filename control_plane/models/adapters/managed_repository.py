"""The model repository that the embedded Triton reads: what the source folders hold, placed under the state folder.

`models/ports.ModelRepository`, for the model service. Folders are real and files are links to the sources, so that nothing
Triton or a stub writes lands in a source, recipes and notes stay out of Triton's sight, and Triton's "has it changed?"
(it compares modification times, through links) sees a change in a source as one in its own repository.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from control_plane.core.errors import ControlPlaneError, ModelLoadFailed, ModelNotFound, StartupError
from control_plane.core.model import MODEL_NAME, NAME_RULE
from control_plane.models.adapters.checks import require_loadable
from control_plane.models.adapters.placed_tree import Tree, bring_in_line, remove, tree_of
from control_plane.triton.adapters.model_config import composing_models, config_file, is_ensemble, with_parameters

_log = logging.getLogger(__name__)

_RECIPE = "build.py"
_NOT_FOR_TRITON = ("*.py", "manifest.json", "README*", "samples*")
"""At a model's top level, besides what `placed_tree` leaves out everywhere."""

_FOR_THE_RECIPE = "texts"
"""What a recipe calibrates with and judges by; in a model without one the name is its owner's to use."""


class ManagedRepository:
    """Models of several source folders under one root; `config_name` as `triton/config_name.config_name_in_force` says.

    `parameters`, by model, are set over those of its configuration, of which Triton then gets a copy.
    """

    def __init__(
        self,
        sources: Sequence[Path],
        state_dir: Path,
        *,
        config_name: str,
        parameters: Mapping[str, Mapping[str, str]] | None = None,
        backends: Collection[str] | None = None,
    ) -> None:
        """`backends` are those that Triton has; None: nobody knows. Nothing is written yet.

        Raises StartupError: a source does not exist, or a model that has parameters.
        """
        self._parameters = parameters or {}
        self._backends = backends
        self._sources = list(dict.fromkeys(source.resolve() for source in sources))
        self._config_name = config_name
        self.root = state_dir.absolute() / "triton/repository"
        for source in self._sources:
            if not source.is_dir():
                raise StartupError(f"--model-repository {source} is not a folder; name one whose subfolders are models")
        if unknown := self._parameters and self._parameters.keys() - set(self.names()):
            raise StartupError(f"--model-parameter: no model {', '.join(sorted(unknown))} in {', '.join(map(str, self._sources))}")

    def names(self) -> list[str]:
        """Every model in the sources now, built or not, by name.

        Raises:
            StartupError: two sources hold one name, a name is none that Triton's clients could use, or a source
                cannot be read.
        """
        found: dict[str, Path] = {}
        for model in self._models():
            if model.name in found:
                raise StartupError(f"two models are called {model.name!r}: {found[model.name]} and {model}; rename one")
            if not _is_name(model.name):
                raise StartupError(f"{model} cannot be a model's name, which is {NAME_RULE}")
            found[model.name] = model
        return sorted(found)

    def place_all(self) -> None:
        """Place every model that can be placed, and remove placed ones whose source is gone. Raises StartupError."""
        names = self.names()
        try:
            self._remove_all_but(names)
        except OSError as exc:
            raise StartupError(f"{self.root} cannot be written: {exc}") from exc
        for name in names:
            try:
                self.place(name)
            except ControlPlaneError as exc:
                _log.warning("model cannot be placed: %s", exc, extra={"model": name})

    def place(self, name: str) -> list[str]:
        """Bring the placed copy, and those of an ensemble's composing models, in line with the sources; their names, its own first.

        Where nothing differs nothing is written: Triton would take a new time for a new model and load it again.

        Raises:
            ModelNotFound: no source has it, or one that the ensemble needs.
            ModelLoadFailed: it is not built, or its configuration or folder cannot be read.
        """
        # Composing models first: an ensemble never stands there without them.
        needed = self._with_composing(name)
        for each in needed:
            bring_in_line(self.root / each.name, self._tree(each))
        return [each.name for each in reversed(needed)]

    def require_loadable(self, name: str) -> None:
        """Raise ModelLoadFailed where Triton could not load it as its source, or that of a composing model, is now; raises as `place`."""
        for each in self._with_composing(name):
            require_loadable(each, self._config_name, backends=self._backends)

    def with_steps(self, name: str) -> list[str]:
        """See `models/ports.ModelRepository.with_steps`."""
        return [model.name for model in self._with_composing(name)]

    def _remove_all_but(self, names: list[str]) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        for placed in self.root.iterdir():
            if placed.name not in names:
                remove(placed)

    def _models(self) -> Iterator[Path]:
        for source in self._sources:
            try:
                yield from sorted(entry for entry in source.iterdir() if not entry.name.startswith(".") and _is_model(entry))
            except OSError as exc:
                raise StartupError(f"--model-repository {source} cannot be read: {exc}") from exc

    def _source_of(self, name: str, needed_by: str | None) -> Path:
        if _is_name(name):
            for source in self._sources:
                if _is_model(source / name):
                    return source / name
            remove(self.root / name)
        looked_in = ", ".join(map(str, self._sources))
        whose = f", which the ensemble {needed_by!r} needs," if needed_by else ""
        raise ModelNotFound(f"no model {name!r}{whose} in {looked_in}")

    def _with_composing(self, name: str) -> list[Path]:
        """The model after everything that it needs, directly or not, each once."""
        done: dict[str, Path] = {}
        entered: set[str] = set()

        def visit(each: str, needed_by: str | None) -> None:
            if each in entered:  # done, or a cycle, which Triton refuses with a message of its own
                return
            entered.add(each)
            model = self._source_of(each, needed_by)
            for step in composing_models(model, self._config_name):
                visit(step, each)
            done[each] = model

        visit(name, None)
        return list(done.values())

    def _tree(self, model: Path) -> Tree:
        hidden = (*_NOT_FOR_TRITON, _FOR_THE_RECIPE) if (model / _RECIPE).exists() else _NOT_FOR_TRITON
        tree = self._with_parameters(model, tree_of(model, hidden_at_top=hidden))
        if _has_version(model):
            return tree
        if is_ensemble(model, self._config_name):
            return tree.with_folder("1")  # Triton wants a version folder, empty as it is
        if (model / _RECIPE).exists():
            raise ModelLoadFailed(f"model {model.name!r} is not built: run `make setup`")
        return tree

    def _with_parameters(self, model: Path, tree: Tree) -> Tree:
        if model.name not in self._parameters:
            return tree
        text = with_parameters(model, self._config_name, self._parameters[model.name])
        return tree.with_text(config_file(model, self._config_name).relative_to(model), text)


def _is_name(name: str) -> bool:
    # `..` fits the pattern and would be the folder above.
    return MODEL_NAME.fullmatch(name) is not None


def _is_model(folder: Path) -> bool:
    return folder.is_dir() and (
        (folder / "config.pbtxt").exists() or (folder / "configs").is_dir() or (folder / _RECIPE).exists() or _has_version(folder)
    )


def _has_version(model: Path) -> bool:
    return any(entry.name.isdecimal() and entry.is_dir() for entry in model.iterdir())
