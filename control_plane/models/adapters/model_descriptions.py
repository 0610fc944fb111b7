"""Reader of models' descriptions from their folders: implements `models/ports.ModelDescriptions`, for
placement.

An owner declares a model's placement spec in string parameters `tidegate_...` of its Triton configuration,
which Triton hands on and otherwise ignores. A value that cannot be used is left out with a warning: that
costs a worse placement, not the model.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ByteSize, TypeAdapter

from control_plane.core.algorithms.closure import MAX_MODELS, closure
from control_plane.core.errors import ModelLoadFailed
from control_plane.core.model import MODEL_NAME, NAME_RULE
from control_plane.core.names import MAX_SIZE_BYTES
from control_plane.models.domain.description import DescribedModel, ModelSpec
from control_plane.protocols.kserve.messages import model_config_pb2
from control_plane.settings import is_utf8_encodable
from control_plane.sharding.domain.plan import read_plan
from control_plane.triton.adapters.model_config import config_as_told, config_file, read_config, steps_of
from control_plane.triton.adapters.model_folders import model_folders, versions

_log = logging.getLogger(__name__)

_PREFIX = "tidegate_"
_ALL_VERSIONS = 2**31
_MAX_COPIES = 10**6
_MAX_PRIORITY = 10**9


class _VersionPolicy(NamedTuple):
    """Which versions of a model Triton loads: those that are named, or else so many of the latest."""

    latest: int = 1
    named: frozenset[int] = frozenset()

    def loaded(self, there: list[str]) -> list[str]:
        """Return which of a model's versions are loaded, of which the lowest comes first."""
        return [each for each in there if int(each) in self.named] if self.named else there[-self.latest :]


_LATEST = _VersionPolicy()
"""Triton's own where a configuration has none."""


@dataclass(frozen=True, slots=True)
class _Configured:
    """Parsed configuration of a model, with the state that its file had (path, modification time, size)."""

    file_state: tuple[str, int, int]
    spec: ModelSpec
    steps: frozenset[str] = frozenset()
    has_sequences: bool = False
    policy: _VersionPolicy = _LATEST
    weight_memory: int | None = None
    """Bytes that its weights may take at a time; None where all of them stay in memory."""


class _Parameter(NamedTuple):
    """Parameter of a configuration: its field in `ModelSpec`, its parser, and what is right, for warnings."""

    field: str
    read: Callable[[str], Any]
    """Raises ValueError."""
    right: str


class ModelDescriptionFiles:
    """Descriptions of the models in several source folders; a configuration is parsed again only if its file
    has changed.
    """

    def __init__(self, sources: Sequence[Path], *, config_name: str, parameters: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """`config_name` and `parameters` are those of `ManagedRepository`."""
        self._sources = sources
        self._config_name = config_name
        self._parameters = parameters or {}
        self._known: dict[str, _Configured] = {}
        self._nameless: set[str] = set()

    def read(self) -> dict[str, DescribedModel]:
        self._known = {folder: self._configured(folder) for folder in self._named(list(self._folders()))}
        own: dict[str, DescribedModel] = {}
        for folder, each in self._known.items():
            if (name := os.path.basename(folder)) not in own:
                size, changed_ns = _weigh(folder, each.policy)
                if each.weight_memory is not None:
                    size = min(size, each.weight_memory)
                own[name] = DescribedModel(each.spec, size, each.steps, each.has_sequences, max(changed_ns, each.file_state[1]))
        return {name: _with_steps(described, own) if described.steps else described for name, described in own.items()}

    def _folders(self) -> Iterator[str]:
        for source in self._sources:
            try:
                yield from model_folders(source)
            except OSError as exc:
                _log.warning("models in %s cannot be read: %s", source, exc)

    def _named(self, folders: list[str]) -> list[str]:
        """Return the folders whose names Triton's clients can use; each of the others is logged once."""
        nameless = {folder for folder in folders if not MODEL_NAME.fullmatch(os.path.basename(folder))}
        for folder in sorted(nameless - self._nameless):
            _log.warning("%r is left out: it cannot be a model's name, which is %s", folder, NAME_RULE)
        self._nameless = nameless
        return [folder for folder in folders if folder not in nameless]

    def _configured(self, folder: str) -> _Configured:
        """Return the parsed configuration of a model, from the memo unless its file has changed."""
        file = self._config_file(folder)
        state = (file, *_state(file))
        known = self._known.get(folder)
        if known is not None and known.file_state == state:
            return known
        name = os.path.basename(folder)
        try:
            config = read_config(Path(file))
        except ModelLoadFailed as exc:
            _log.warning("what model %s wants is not known: %s", name, exc)
            return _Configured(state, ModelSpec(name))  # the load of the model fails with the same reason
        declared = {key: value.string_value for key, value in config.parameters.items()} | dict(self._parameters.get(name, {}))
        spec = replace(_spec(name, declared, config), instances=_instances(config))
        steps = frozenset[str]() if spec.sharded else frozenset(steps_of(config))  # no load of it loads them
        return _Configured(state, spec, steps, _has_sequences(config), _policy(config), _weight_memory(declared, spec.instances))

    def _config_file(self, folder: str) -> str:
        if self._config_name:
            with suppress(OSError):  # the folder `configs` is not readable
                return str(config_file(Path(folder), self._config_name))
        return f"{folder}/config.pbtxt"


def _spec(model: str, declared: Mapping[str, str], config: model_config_pb2.ModelConfig) -> ModelSpec:
    """Parse the placement spec out of a model's string parameters; those that cannot be used are logged."""
    values: dict[str, Any] = {}
    for key, text in declared.items():
        if key.startswith(_PREFIX):
            values |= _value(model, key, text)
    is_pinned, is_sharded = values.pop("is_pinned", False), values.pop("is_sharded", False)
    spec = ModelSpec(model, **values)
    if is_sharded and not config.HasField("ensemble_scheduling"):
        _log.warning("model %s: tidegate_sharded is for ensembles, whose steps are the parts; left out", model)
    elif is_sharded:
        return replace(spec, sharded=_sharded(model, config), min_replicas=0)
    if is_pinned:
        spec = replace(spec, min_replicas=max(1, spec.min_replicas))
    if spec.max_replicas is not None and spec.max_replicas < spec.min_replicas:
        _log.warning(
            "model %s: tidegate_max_replicas is %d, less than the %d it must have; left out", model, spec.max_replicas, spec.min_replicas
        )
        spec = replace(spec, max_replicas=None)
    return spec


def _sharded(model: str, config: model_config_pb2.ModelConfig) -> str:
    """The configuration of a sharded model as Triton would tell it; one that cannot be carried out is logged, and refused to its
    callers in the same words."""
    told = config_as_told(model, config)
    try:
        read_plan(told)
    except ModelLoadFailed as exc:
        _log.warning("model %s: %s", model, exc)
    return told


def _value(model: str, key: str, text: str) -> dict[str, Any]:
    """Parse a parameter: a mapping from its field of `ModelSpec` to its value; empty, with a warning, if it
    cannot be used.
    """
    parameter = _PARAMETERS.get(key)
    if parameter is None:
        _log.warning("model %s: no parameter %s is known, but %s; left out", model, key, ", ".join(_PARAMETERS))
        return {}
    try:
        return {parameter.field: parameter.read(text.strip())}
    except ValueError:
        _log.warning("model %s: %s is %r; expected %s; left out", model, key, text[:40], parameter.right)
        return {}


def _bytes(text: str) -> int:
    size = int(TypeAdapter(ByteSize).validate_python(text))  # as --memory-budget is read; its ValidationError is a ValueError
    return _between(1, MAX_SIZE_BYTES, size)


def _whole(least: int, most: int) -> Callable[[str], int]:
    return lambda text: _between(least, most, int(text))


def _seconds(milliseconds: str) -> float:
    value = float(milliseconds) / 1000
    if not 0 < value < math.inf:
        raise ValueError(value)
    return value


def _labels(text: str) -> dict[str, str]:
    labels = {}
    for label in text.split(","):
        key, equals, value = (part.strip() for part in label.partition("="))
        if not (key and equals and value and is_utf8_encodable(label)) or key in labels:
            raise ValueError(label)
        labels[key] = value
    return labels


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _between(least: int, most: int, value: int) -> int:
    if not least <= value <= most:
        raise ValueError(value)
    return value


_PARAMETERS: Mapping[str, _Parameter] = {
    f"{_PREFIX}resident_bytes": _Parameter("resident_bytes", _bytes, "bytes, such as 200MiB, and an EiB at most"),
    f"{_PREFIX}min_replicas": _Parameter("min_replicas", _whole(0, _MAX_COPIES), f"a whole number from 0 to {_MAX_COPIES}"),
    f"{_PREFIX}max_replicas": _Parameter("max_replicas", _whole(1, _MAX_COPIES), f"a whole number from 1 to {_MAX_COPIES}"),
    f"{_PREFIX}priority": _Parameter(
        "priority", _whole(-_MAX_PRIORITY, _MAX_PRIORITY), f"a whole number within {_MAX_PRIORITY} of 0; the higher stays"
    ),
    f"{_PREFIX}latency_objective_ms": _Parameter("latency_objective_s", _seconds, "milliseconds above 0, such as 50"),
    f"{_PREFIX}server_labels": _Parameter("server_labels", _labels, "labels with their values, such as gpu=h200,zone=a, each once"),
    f"{_PREFIX}pinned": _Parameter("is_pinned", _boolean, "true or false"),
    f"{_PREFIX}sharded": _Parameter("is_sharded", _boolean, "true or false"),
    f"{_PREFIX}repeatable": _Parameter("is_repeatable", _boolean, "true or false"),
}


def _has_sequences(config: model_config_pb2.ModelConfig) -> bool:
    return bool(config.HasField("sequence_batching"))


def _instances(config: model_config_pb2.ModelConfig) -> int:
    """Return how many instances a replica has at least: Triton may make one of a group for each GPU."""
    return sum(max(1, group.count) for group in config.instance_group if not group.passive) or 1


def _weight_memory(declared: Mapping[str, str], instances: int) -> int | None:
    """Return the bytes of `weight_memory_mb`, which each instance has; a load of a model with another value fails, with the reason."""
    text = declared.get("weight_memory_mb", "").strip()
    return min(instances * int(text) << 20, MAX_SIZE_BYTES) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _policy(config: model_config_pb2.ModelConfig) -> _VersionPolicy:
    policy = config.version_policy
    latest = _ALL_VERSIONS if policy.HasField("all") else max(1, policy.latest.num_versions)
    return _VersionPolicy(latest, frozenset(policy.specific.versions))


def _with_steps(model: DescribedModel, own: Mapping[str, DescribedModel]) -> DescribedModel:
    """Complete an ensemble's description by its indirect steps; a step that no source has is named and counts
    no bytes. Of an ensemble of too many models, whose load is refused, only some are counted.
    """
    steps = closure(model.spec.name, lambda each: own[each].steps if each in own else (), most=MAX_MODELS)[1:]
    parts = [model, *(own[step] for step in steps if step in own)]
    return replace(
        model,
        steps=frozenset(steps),
        file_bytes=min(sum(part.file_bytes for part in parts), MAX_SIZE_BYTES),
        changed_ns=max(part.changed_ns for part in parts),
        has_sequences=any(part.has_sequences for part in parts),
    )


def _weigh(folder: str, policy: _VersionPolicy) -> tuple[int, int]:
    """Return the bytes of the versions that are loaded, and when a file or folder in them was last changed."""
    changed_ns, size = _state(folder)[0], 0
    try:
        loaded = policy.loaded(versions(folder))
    except OSError:
        return 0, 0  # the folder has just been removed
    for version in loaded:
        for place, _, names in os.walk(f"{folder}/{version}"):
            changed_ns = max(changed_ns, _state(place)[0])
            for name in names:
                file_changed_ns, file_bytes = _state(f"{place}/{name}")
                changed_ns, size = max(changed_ns, file_changed_ns), size + file_bytes
    return min(size, MAX_SIZE_BYTES), changed_ns  # sparse files may claim any size


def _state(file: str) -> tuple[int, int]:
    """Return when a file was last changed, and its size; zeros if it cannot be seen."""
    try:
        found = os.stat(file)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
