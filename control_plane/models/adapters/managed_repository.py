"""Model repository of the embedded Triton: a mirror of the source folders under the state folder.

Implements `models/ports.ModelRepository` for `models/model_service`. Folders are real and files are links to
the sources. So nothing that Triton or a stub writes lands in a source, recipes and notes are hidden from
Triton, and a change in a source looks to Triton like one in its own repository (it compares modification
times, through links).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from control_plane.core.algorithms.closure import MAX_MODELS
from control_plane.core.errors import ControlPlaneError, ModelLoadFailed, ModelNotFound, StartupError
from control_plane.core.model import MODEL_NAME, NAME_RULE
from control_plane.models.adapters.checks import require_loadable
from control_plane.models.adapters.placed_tree import Tree, reconcile_tree, remove, tree_of
from control_plane.triton.adapters.model_config import composing_models, config_file, is_ensemble, with_parameters

_log = logging.getLogger(__name__)

_RECIPE = "build.py"
_NOT_FOR_TRITON = ("*.py", "manifest.json", "README*", "samples*")
"""Files at a model's top level that are not placed, besides those that `placed_tree` leaves out
everywhere.
"""

_FOR_THE_RECIPE = "texts"
"""Folder with what a recipe calibrates and evaluates with; it is placed if the model has no recipe, since the
name is free then.
"""


_Known = dict[str, tuple[Path, list[str]]]
"""Folders and composing models, by the names of models whose configurations have been read."""


class ManagedRepository:
    """Repository that merges several source folders under one root; `config_name` is from
    `triton/config_name.config_name_in_force`.

    `parameters`, by model, override those of a model's configuration; Triton then gets a changed copy of the
    configuration.
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
        """`backends` are those that Triton has, None if unknown. Writes nothing yet.

        Raises StartupError: a source does not exist, or there are parameters for a model that does not exist.
        """
        self._parameters = parameters or {}
        self._backends = backends
        self._sources = list(dict.fromkeys(source.resolve() for source in sources))
        self._config_name = config_name
        self.root = state_dir.absolute() / "triton/repository"
        # A start of Triton that has been given up may still be placing, in its thread, when the next begins; and ensembles that
        # are loaded at the same time may share steps.
        self._placing = threading.Lock()
        for source in self._sources:
            if not source.is_dir():
                raise StartupError(f"--model-repository {source} is not a folder; name one whose subfolders are models")
        if unknown := self._parameters and self._parameters.keys() - set(self.names()):
            raise StartupError(f"--model-parameter: no model {', '.join(sorted(unknown))} in {', '.join(map(str, self._sources))}")

    def names(self) -> list[str]:
        """Return every model in the sources now, built or not, by name.

        Raises:
            StartupError: two sources have a model of one name, a name cannot be used by Triton's clients, or
                a source cannot be read.
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
        """Place every model that can be placed, and remove placed ones whose source is gone. It takes about
        1 ms a model, so it is called in threads. Raises StartupError.
        """
        with self._placing:
            names = self.names()
            try:
                self._remove_all_but(names)
            except OSError as exc:
                raise StartupError(f"{self.root} cannot be written: {exc}") from exc
            placed: set[Path] = set()
            known: _Known = {}
            for name in names:
                try:
                    self._place(self._with_composing(name, known), placed)
                except ControlPlaneError as exc:
                    _log.warning("model cannot be placed: %s", exc, extra={"model": name})

    def place(self, name: str) -> list[str]:
        """Bring the placed copies of a model and of its composing models in line with the sources; return
        their names, its own first. It takes milliseconds, and as long as the disk wants, so it is called in threads.

        Only what differs is written: Triton would take a new modification time for a changed model, and load
        it again.

        Raises:
            ModelNotFound: no source has the model, or one that the ensemble needs.
            ModelLoadFailed: the model is not built, its configuration or folder cannot be read, or the ensemble needs too many
                models.
        """
        needed = self._with_composing(name)
        with self._placing:
            self._place(needed, set())
        return [each.name for each in reversed(needed)]

    def require_loadable(self, name: str) -> None:
        """Raise ModelLoadFailed if Triton could not load the model, or a composing model, as its source is
        now; raises as `place`.
        """
        for each in self._with_composing(name):
            require_loadable(each, self._config_name, backends=self._backends)

    def ensemble_closure(self, name: str) -> list[str]:
        """Return the composing models and the model, as `models/ports.ModelRepository.ensemble_closure` says."""
        return [model.name for model in self._with_composing(name)]

    def _place(self, models: list[Path], placed: set[Path]) -> None:
        """Place models, composing ones first, so that an ensemble is never in the repository without them;
        those in `placed` are, and the others are added to it."""
        for model in models:
            if model not in placed:
                with _readable(model.name):
                    reconcile_tree(self.root / model.name, self._tree(model))
                placed.add(model)

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

    def _source_of(self, name: str, dependencies_of: str | None) -> Path:
        """Return the source folder of a model; a placed copy without a source is removed. Raises
        ModelNotFound.
        """
        if _is_name(name):
            for source in self._sources:
                if _is_model(source / name):
                    return source / name
            remove(self.root / name)
        looked_in = ", ".join(map(str, self._sources))
        whose = f", which the ensemble {dependencies_of!r} needs," if dependencies_of else ""
        for folder in (source / name for source in self._sources if _is_name(name)):
            if folder.is_dir():
                raise ModelNotFound(
                    f"{folder} is no model: put its files into a version's folder, such as {folder}/1, or add a config.pbtxt"
                )
        raise ModelNotFound(f"no model {name!r}{whose} in {looked_in}; `tidegate models list` shows those there are")

    def _with_composing(self, name: str, known: _Known | None = None) -> list[Path]:
        """Return the folders of all models that the model needs, directly or indirectly, each once and before
        its users; those in `known` are not read, and the others are added to it. Raises as `place`.
        """
        known = {} if known is None else known
        done: list[Path] = []
        entered = {name}
        with _readable(name):
            path = [self._entered(name, None, known)]
            while path:
                model, steps = path[-1]
                # One that was entered is done, or makes a cycle, which Triton refuses with a message of its own.
                step = next((each for each in steps if each not in entered), None)
                if step is None:
                    done.append(path.pop()[0])
                    continue
                entered.add(step)
                if len(entered) > MAX_MODELS:
                    raise ModelLoadFailed(f"the ensemble {name!r} needs more than {MAX_MODELS} models, itself included, which is the most")
                path.append(self._entered(step, model.name, known))
        return done

    def _entered(self, name: str, dependencies_of: str | None, known: _Known) -> tuple[Path, Iterator[str]]:
        if name not in known:
            model = self._source_of(name, dependencies_of)
            known[name] = model, composing_models(model, self._config_name)
        model, steps = known[name]
        return model, iter(steps)

    def _tree(self, model: Path) -> Tree:
        """Return what is to be placed of a model. Raises ModelLoadFailed: it has a recipe and was not
        built.
        """
        hidden = (*_NOT_FOR_TRITON, _FOR_THE_RECIPE) if (model / _RECIPE).exists() else _NOT_FOR_TRITON
        tree = self._with_parameters(model, tree_of(model, hidden_at_top=hidden))
        if _has_version(model):
            return tree
        if is_ensemble(model, self._config_name):
            return tree.with_folder("1")  # Triton requires a version folder, though an ensemble's is empty
        if (model / _RECIPE).exists():
            raise ModelLoadFailed(f"model {model.name!r} is not built: run `make setup`")
        return tree

    def _with_parameters(self, model: Path, tree: Tree) -> Tree:
        if model.name not in self._parameters:
            return tree
        text = with_parameters(model, self._config_name, self._parameters[model.name])
        return tree.with_text(config_file(model, self._config_name).relative_to(model), text)


@contextmanager
def _readable(model: str) -> Iterator[None]:
    """Raise ModelLoadFailed where a folder of the model may not be read, or has just gone."""
    try:
        yield
    except OSError as exc:
        raise ModelLoadFailed(f"model {model!r} cannot be read: {exc}") from exc


def _is_name(name: str) -> bool:
    # The pattern must not admit `..`, which would be the folder above.
    return MODEL_NAME.fullmatch(name) is not None


def _is_model(folder: Path) -> bool:
    return folder.is_dir() and (
        (folder / "config.pbtxt").exists() or (folder / "configs").is_dir() or (folder / _RECIPE).exists() or _has_version(folder)
    )


def _has_version(model: Path) -> bool:
    return any(entry.name.isdecimal() and entry.is_dir() for entry in model.iterdir())
