"""Reader of models' Triton configurations: which file is in force, an ensemble's steps, string parameters.

The format is the text format of `ModelConfig` (Triton's model_config.proto); everything else in it is
Triton's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format

from control_plane.core.errors import ModelLoadFailed
from control_plane.protocols.kserve.messages import model_config_pb2

_WIDE = frozenset(("dims", "shape", "model_version", "versions"))
"""Fields of 64 bits."""
_STEPS = "ensemble_scheduling"
"""Field that every ensemble's configuration spells out."""


def config_file(model_dir: Path, config_name: str) -> Path:
    """Return the file that Triton reads for a model; it need not exist, since Triton can complete
    configurations itself.
    """
    if config_name and (custom := model_dir / "configs" / f"{config_name}.pbtxt").is_file():
        return custom
    return model_dir / "config.pbtxt"


def is_ensemble(model_dir: Path, config_name: str) -> bool:
    """Whether the model is an ensemble. Raises ModelLoadFailed: its configuration cannot be read."""
    config = read_config(config_file(model_dir, config_name))
    return bool(config.platform == "ensemble" or config.HasField("ensemble_scheduling"))


def composing_models(model_dir: Path, config_name: str) -> list[str]:
    """Return the models that an ensemble's steps name, each once; none for other models, whose configurations
    are not parsed. Raises ModelLoadFailed.
    """
    path = config_file(model_dir, config_name)
    text = _read(path)
    # Parsing takes 0.5 ms, and nearly all models are no ensembles.
    return steps_of(_parse(path, text)) if _STEPS in text else []


def steps_of(config: model_config_pb2.ModelConfig) -> list[str]:
    """Return the models that the steps of a configuration name, each once."""
    return list(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def config_as_told(name: str, config: model_config_pb2.ModelConfig) -> str:
    """Return a configuration as Triton tells it of a loaded model (JSON), with the defaults that it completes all by."""
    own = model_config_pb2.ModelConfig()
    own.CopyFrom(config)
    own.name = name
    if not own.HasField("version_policy"):
        own.version_policy.latest.num_versions = 1
    own.model_transaction_policy.decoupled = False
    said = json_format.MessageToDict(own, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return json.dumps(_with_numbers(said), separators=(",", ":"), ensure_ascii=False)


def _with_numbers(said: Any, field: str = "") -> Any:
    """Return the configuration with numbers of 64 bits as numbers, which protobuf writes as strings."""
    if isinstance(said, dict):
        return {key: _with_numbers(value, key) for key, value in said.items()}
    if isinstance(said, list):
        return [_with_numbers(each, field) for each in said]
    return int(said) if field in _WIDE and isinstance(said, str) else said


def string_parameters(config: model_config_pb2.ModelConfig) -> list[str]:
    """Return the values of a configuration's parameters, each once and sorted."""
    return sorted({parameter.string_value for parameter in config.parameters.values()} - {""})


def is_true(config: model_config_pb2.ModelConfig, parameter: str) -> bool:
    """Whether a configuration has a parameter that says true; a wrong value is told of where the file is read."""
    return parameter in config.parameters and config.parameters[parameter].string_value.lower() == "true"


def with_parameters(model_dir: Path, config_name: str, parameters: Mapping[str, str]) -> str:
    """Return the text of a model's configuration in which `parameters` override its own. Raises
    ModelLoadFailed.
    """
    config = read_config(config_file(model_dir, config_name))
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return text_format.MessageToString(config)


def read_config(path: Path) -> model_config_pb2.ModelConfig:
    """Parse a configuration file; a file that does not exist is an empty configuration. Raises
    ModelLoadFailed.
    """
    return _parse(path, _read(path))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as exc:
        raise ModelLoadFailed(f"{path} cannot be read: {exc}") from exc


def _parse(path: Path, text: str) -> model_config_pb2.ModelConfig:
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as exc:
        raise ModelLoadFailed(f"{path}:{exc}") from exc  # the error's text begins with line and column
