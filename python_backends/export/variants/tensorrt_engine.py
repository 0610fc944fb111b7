"""Builds a TensorRT engine, `model.plan`, from a plain ONNX file, for this kind of GPU and version of TensorRT.

Follows the Python API of TensorRT 10. The file must be in operators of the ONNX standard; TensorRT does its own fusing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from python_backends.export.recipe import BuildError
from python_backends.runtime.interface import DTYPES, Interface, TensorSpec, write_interface
from python_backends.runtime.machine import gpu_name

FILENAME = "model.plan"

# Precision -> the builder's flag. Inputs and outputs stay as the ONNX file has them.
PRECISION_FLAGS = {"fp32": None, "fp16": "FP16", "bf16": "BF16"}

# Room in which the builder tries tactics; a transformer needs little of it, and more only lets it try more.
WORKSPACE_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Profile:
    """Optimisation profile: the (batch, length) that it takes at least, is tuned for, and takes at most."""

    least: tuple[int, int]
    best: tuple[int, int]
    most: tuple[int, int]


def missing_for_gpu() -> str | None:
    """Say what this machine lacks to build an engine; None if nothing."""
    missing = [name for name in ("tensorrt", "cuda", "onnx") if find_spec(name) is None]
    if gpu_name() is None:
        return "it needs an NVIDIA GPU, of the kind that will serve it, and the Python packages tensorrt (10.x), cuda-python and onnx"
    return (
        f"it needs the Python packages tensorrt (10.x), cuda-python and onnx, of which {', '.join(missing)} cannot be found"
        if missing
        else None
    )


def build_engine(onnx: bytes, path: Path, *, precision: str, profiles: Sequence[Profile]) -> Path:
    """Write the engine to `path`, and its interface beside it.

    `precision` is "fp32", "fp16" or "bf16"; of two profiles that take a shape the runtime uses the first.

    Raises:
        BuildError: This machine cannot build engines, or TensorRT cannot build this one.
    """
    if precision not in PRECISION_FLAGS:
        raise BuildError(f"unknown precision '{precision}', known are: {', '.join(PRECISION_FLAGS)}")
    if missing := missing_for_gpu():
        raise BuildError(missing)
    interface = interface_of(onnx, profiles)
    path.write_bytes(_build(onnx, interface, precision=precision, profiles=profiles))
    write_interface(interface, path.parent)
    return path


def interface_of(model: bytes, profiles: Sequence[Profile]) -> Interface:
    """Return the inputs and outputs, within the profiles, of an ONNX file whose inputs are all [batch, length].

    Raises:
        BuildError: It has other inputs.
    """
    import onnx

    graph = onnx.load_from_string(model).graph
    inputs = tuple(_tensor(value, below=_table_size(graph, value.name)) for value in graph.input)
    if any(len(spec.dims) != 2 or not all(isinstance(dim, str) for dim in spec.dims) for spec in inputs):
        raise BuildError(f"all inputs must be [batch, length], both dynamic, not {[list(spec.dims) for spec in inputs]}")
    batch, length = (str(dim) for dim in inputs[0].dims)
    maximum = {batch: max(profile.most[0] for profile in profiles), length: max(profile.most[1] for profile in profiles)}
    return Interface(inputs, tuple(_tensor(value) for value in graph.output), maximum)


def _tensor(value: Any, *, below: int | None = None) -> TensorSpec:
    import onnx

    kind = value.type.tensor_type
    dims = tuple(dim.dim_param or dim.dim_value for dim in kind.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    name = next((name for name, known in DTYPES.items() if dtype == known), None)
    if name is None:
        raise BuildError(f"'{value.name}' of the ONNX file is {dtype}, which is not supported")
    return TensorSpec(value.name, name, dims, below)


def _table_size(graph: Any, input_name: str) -> int | None:
    """Return the rows of the table that an input's values index: TensorRT reads beyond it without an error."""
    tables = {tensor.name: tensor.dims[0] for tensor in graph.initializer}
    rows = [
        tables[node.input[0]] for node in graph.node if node.op_type == "Gather" and node.input[1] == input_name and node.input[0] in tables
    ]
    return min(rows, default=None)


def _build(onnx: bytes, interface: Interface, *, precision: str, profiles: Sequence[Profile]) -> bytes:
    import tensorrt as trt

    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    # 0: no flags. Explicit batch, once a flag, is all there is in TensorRT 10.
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(onnx):
        errors = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise BuildError(f"TensorRT {trt.__version__} cannot read the ONNX file: {errors}")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, WORKSPACE_BYTES)
    _set_precision(trt, config, precision)
    for profile in profiles:
        _add_profile(builder, config, profile, interface)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise BuildError(f"TensorRT {trt.__version__} cannot build the engine, see its log above")
    return bytes(plan)


def _set_precision(trt: Any, config: Any, precision: str) -> None:
    flag = PRECISION_FLAGS[precision]
    if flag is None:
        return
    if not hasattr(trt.BuilderFlag, flag):
        # Later ones take precisions from the network alone.
        raise BuildError(f"TensorRT {trt.__version__} has no flag for {precision}: it needs TensorRT 10")
    config.set_flag(getattr(trt.BuilderFlag, flag))


def _add_profile(builder: Any, config: Any, profile: Profile, interface: Interface) -> None:
    optimization = builder.create_optimization_profile()
    for spec in interface.inputs:
        optimization.set_shape(spec.name, profile.least, profile.best, profile.most)
    if config.add_optimization_profile(optimization) < 0:
        raise BuildError(f"TensorRT refuses the profile {profile}: least <= best <= most must hold in each dimension")
