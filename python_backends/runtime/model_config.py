"""Triton's model configuration, read from the JSON that the server hands to a backend.

Follows `model_config.proto` (Triton 24.10); a key that the backends do not use is not read. Called once per
instance, at load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from python_backends.runtime.errors import ConfigError

# ParseBoolValue in Triton's backend_common.cc accepts exactly these, in any case.
BOOLEAN_WORDS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """One `input` or `output`; `dims` are those the model sees (reshape applied), without the batch
    dimension, -1 where variable.
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False
    allow_ragged_batch: bool = False


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One entry of `optimization.execution_accelerators`."""

    name: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The part of a model's configuration that the backends use.

    `instance_count` is the number of instances of this model on this server, over all groups and devices.
    `control_inputs` are the tensors that the sequence batcher adds to each request.
    """

    name: str
    max_batch_size: int
    inputs: tuple[TensorConfig, ...]
    outputs: tuple[TensorConfig, ...]
    default_model_filename: str
    parameters: Mapping[str, str]
    instance_count: int
    graph_level: int
    gpu_accelerators: tuple[Accelerator, ...]
    cpu_accelerators: tuple[Accelerator, ...]
    op_library_filenames: tuple[str, ...]
    uses_dynamic_batching: bool
    control_inputs: tuple[str, ...]

    def integer(self, key: str, default: int) -> int:
        """Return the parameter `key` as an integer.

        Raises:
            ConfigError: The value is not an integer.
        """
        text = self.parameters.get(key, str(default))
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"model '{self.name}': parameter '{key}' must be an integer, not '{text}'") from None

    def boolean(self, key: str) -> bool | None:
        """Return the parameter `key` as a boolean; None if it is absent.

        Raises:
            ConfigError: The value is none of true, on, 1, false, off, 0.
        """
        if key not in self.parameters:
            return None
        return parse_boolean(self.parameters[key], f"model '{self.name}': parameter '{key}'")


def parse_boolean(text: str, what: str) -> bool:
    """Parse a boolean the way Triton does; `what` names the value in the error.

    Raises:
        ConfigError: The text is none of true, on, 1, false, off, 0.
    """
    try:
        return BOOLEAN_WORDS[text.lower()]
    except KeyError:
        raise ConfigError(f"{what} must be true or false, not '{text}'") from None


def parse_model_config(config: Mapping[str, Any]) -> ModelConfig:
    """Parse Triton's JSON, which contains all keys with defaults.

    Raises:
        ConfigError: The configuration uses features of native backends only: `batch_input`, `batch_output` or
        implicit state.
    """
    _refuse_unsupported(config)
    optimization = config.get("optimization", {})
    accelerators = optimization.get("execution_accelerators", {})
    return ModelConfig(
        name=config["name"],
        max_batch_size=config["max_batch_size"],
        inputs=tuple(_tensor(entry) for entry in config["input"]),
        outputs=tuple(_tensor(entry) for entry in config["output"]),
        default_model_filename=config.get("default_model_filename", ""),
        parameters={key: value["string_value"] for key, value in config.get("parameters", {}).items()},
        instance_count=_instance_count(config.get("instance_group", [])),
        graph_level=int(optimization.get("graph", {}).get("level", 0)),
        gpu_accelerators=_accelerators(accelerators.get("gpu_execution_accelerator", [])),
        cpu_accelerators=_accelerators(accelerators.get("cpu_execution_accelerator", [])),
        op_library_filenames=tuple(config.get("model_operations", {}).get("op_library_filename", [])),
        uses_dynamic_batching="dynamic_batching" in config,
        control_inputs=tuple(entry["name"] for entry in config.get("sequence_batching", {}).get("control_input", [])),
    )


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    unsupported = [key for key in ("batch_input", "batch_output") if config.get(key)]
    if config.get("sequence_batching", {}).get("state"):
        unsupported.append("sequence_batching.state")
    if unsupported:
        raise ConfigError(
            f"model '{config['name']}' uses {', '.join(unsupported)}, which Triton offers to native backends only: "
            "serve it on NVIDIA's image"
        )


def _tensor(entry: Mapping[str, Any]) -> TensorConfig:
    dims = entry["reshape"].get("shape", []) if "reshape" in entry else entry["dims"]
    return TensorConfig(
        name=entry["name"],
        data_type=entry["data_type"],
        dims=tuple(int(dim) for dim in dims),
        optional=entry.get("optional", False),
        allow_ragged_batch=entry.get("allow_ragged_batch", False),
    )


def _accelerators(entries: Sequence[Mapping[str, Any]]) -> tuple[Accelerator, ...]:
    return tuple(Accelerator(entry["name"], dict(entry.get("parameters", {}))) for entry in entries)


def _instance_count(groups: Sequence[Mapping[str, Any]]) -> int:
    # `count` instances are made on each device that a group lists.
    return sum(group["count"] * max(1, len(group.get("gpus", []))) for group in groups) or 1
