"""Reads models' costs from the repositories: the manifests of built variants, and each model's configuration.

Implements `metering/ports.ModelCosts`. Manifests have the format 3 that recipes write
(`python_backends/export/manifest.py`, which the control plane must not import).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from control_plane.core.errors import ModelLoadFailed
from control_plane.metering.domain.compute_units import ModelCost, UnitTable, read_unit_table
from control_plane.protocols.kserve.messages import model_config_pb2
from control_plane.triton.adapters.model_config import config_file, read_config
from control_plane.triton.adapters.model_folders import model_folders, newest_version

_log = logging.getLogger(__name__)

_MANIFEST = "manifest.json"
_FORMAT_VERSION = 3
_VARIANT = "variant"
_AUTO = "auto"
_REFERENCE = "fp32"

_Fingerprint = tuple[tuple[str, int, int], ...]


class ModelManifests:
    """Reader of the costs of all models in several folders; reads a model again only when one of its files
    has changed.
    """

    def __init__(self, sources: Sequence[Path], *, config_name: str, parameters: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """`config_name` and `parameters` are those of `ManagedRepository`."""
        self._sources = sources
        self._config_name = config_name
        self._parameters = parameters or {}
        self._known: dict[str, tuple[_Fingerprint, ModelCost | None]] = {}

    async def read(self) -> dict[str, ModelCost]:
        """Read on a thread; see `read_now`."""
        return await asyncio.to_thread(self.read_now)

    def read_now(self) -> dict[str, ModelCost]:
        """Return the costs by model, without models that cannot be read. Blocks on the disk."""
        self._known = known = {model: self._cost_once(model) for model in self._models()}
        return {os.path.basename(model): cost for model, (_, cost) in known.items() if cost is not None}

    def _models(self) -> Iterator[str]:
        for source in self._sources:
            try:
                yield from model_folders(source)
            except OSError as exc:
                _log.warning("models' costs in %s cannot be read: %s", source, exc)

    def _cost_once(self, model: str) -> tuple[_Fingerprint, ModelCost | None]:
        manifests = _manifests(model)
        config = str(config_file(Path(model), self._config_name)) if self._config_name else f"{model}/config.pbtxt"
        fingerprint = _fingerprint([config, *manifests])
        known = self._known.get(model)
        if known is not None and known[0] == fingerprint:
            return known
        return fingerprint, self._cost(Path(model), [Path(each) for each in manifests])

    def _cost(self, model: Path, manifests: Sequence[Path]) -> ModelCost | None:
        try:
            config = read_config(config_file(model, self._config_name))
        except ModelLoadFailed as exc:
            _log.warning("the cost of model %s is not known: %s", model.name, exc)
            return None
        tables = {path.parent.name: table for path in manifests if (table := _table(path)) is not None}
        named = self._parameters.get(model.name, {}).get(_VARIANT) or config.parameters[_VARIANT].string_value or _AUTO
        is_left_open = named == _AUTO
        return ModelCost(
            tables.get(_REFERENCE if is_left_open else named),
            tuple(step.model_name for step in config.ensemble_scheduling.step),
            _is_batched(config),
            tables if is_left_open else {},
        )


def _manifests(model: str) -> list[str]:
    """Return the manifests of the newest version, one per variant."""
    try:
        newest = newest_version(model)
        if newest is None:
            return []
        with os.scandir(newest) as entries:
            variants = sorted(entry.path for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    except OSError:
        return []  # the model has just been removed
    return [manifest for variant in variants if os.path.lexists(manifest := f"{variant}/{_MANIFEST}")]


def _fingerprint(files: Sequence[str]) -> _Fingerprint:
    found = []
    for file in files:
        try:
            state = os.stat(file)
            found.append((file, state.st_mtime_ns, state.st_size))
        except OSError:
            found.append((file, 0, 0))
    return tuple(found)


def _is_batched(config: model_config_pb2.ModelConfig) -> bool:
    """Whether a model is batched; where the file leaves inputs to auto-completion, most models are."""
    return config.max_batch_size > 0 or not config.input


def _table(manifest: Path) -> UnitTable | None:
    try:
        document = json.loads(manifest.read_text(encoding="utf-8"))
        if document["format_version"] != _FORMAT_VERSION or not (manifest.parent / document["file"]).is_file():
            return None
        return read_unit_table(document.get("latency_table"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # damaged, or not ours: the backend serves no such variant either
