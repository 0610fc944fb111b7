"""Input and output specification of a model built here: `interface.json` beside a file whose format has none,
or reports it too late.

A request that does not match is refused before anything runs. On a GPU this is necessary: an index beyond an
embedding table destroys the process's CUDA context (PyTorch), or is not noticed at all (TensorRT, ONNX
Runtime).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from python_backends.runtime.errors import ConfigError, RequestError
from python_backends.runtime.execution import Array, Tensors
from python_backends.runtime.signature import Signature, TensorSignature

FILENAME = "interface.json"

Sizes = Mapping[str, int]
"""Name of a dimension -> its size in one request."""

DTYPES: Mapping[str, Any] = {"TYPE_INT64": np.int64, "TYPE_INT32": np.int32, "TYPE_FP32": np.float32, "TYPE_UINT8": np.uint8}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Specification of a tensor: each dimension is a size or, if it varies, a name; values are in [0, below)
    if that is given.
    """

    name: str
    data_type: str
    dims: tuple[int | str, ...]
    below: int | None = None

    @property
    def dtype(self) -> Any:
        """NumPy's data type of the tensor."""
        return DTYPES[self.data_type]

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """Return the shape for these sizes of the named dimensions."""
        return tuple(dim if isinstance(dim, int) else sizes[dim] for dim in self.dims)


@dataclass(frozen=True, slots=True)
class Interface:
    """Specification of all inputs and outputs of a model, in its order, with the largest size of named
    dimensions.

    All inputs may be padded with zeros in every dimension: rows and positions of zeros do not change other
    outputs.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    maximum: Sizes = field(default_factory=dict)

    @property
    def signature(self) -> Signature:
        """The specification in the form that `check_signature` expects."""
        return Signature(tuple(map(_without_names, self.inputs)), tuple(map(_without_names, self.outputs)))

    def sizes(self, arrays: Sequence[Array]) -> Sizes:
        """Return the sizes of the named dimensions in inputs that have been checked, given in the model's
        order.
        """
        pairs = ((spec.dims, array.shape) for spec, array in zip(self.inputs, arrays, strict=True))
        return {dim: size for dims, shape in pairs for dim, size in zip(dims, shape, strict=True) if isinstance(dim, str)}

    def check(self, output_names: Collection[str], inputs: Tensors) -> Sizes:
        """Check the inputs and requested outputs; return the sizes of the named dimensions.

        Raises:
            RequestError: The inputs do not match the specification, or a requested output does not exist.
        """
        if unknown := sorted(set(output_names) - {spec.name for spec in self.outputs}):
            raise RequestError(f"there is no output {', '.join(unknown)}, the model has: {_names(self.outputs)}")
        if set(inputs) != {spec.name for spec in self.inputs}:
            raise RequestError(f"the inputs must be {_names(self.inputs)}, not {', '.join(sorted(inputs)) or 'none'}")
        sizes: dict[str, int] = {}
        for spec in self.inputs:
            self._check_input(spec, inputs[spec.name], sizes)
        return sizes

    def _check_input(self, spec: TensorSpec, array: Array, sizes: dict[str, int]) -> None:
        if array.dtype != spec.dtype:
            raise RequestError(f"input '{spec.name}' must be {spec.data_type}, not {array.dtype}")
        known = dict(sizes)
        if array.ndim == len(spec.dims):
            for dim, size in zip(spec.dims, array.shape, strict=True):
                sizes.setdefault(str(dim), size)
        if array.ndim != len(spec.dims) or array.shape != spec.shape(sizes):
            raise RequestError(f"input '{spec.name}' must have the shape {_described(spec, known)}, not {list(array.shape)}")
        for name, size in sizes.items():
            if not 0 < size <= self.maximum.get(name, size):
                raise RequestError(f"input '{spec.name}' has a {name} of {size}, the model takes 1..{self.maximum.get(name, 'any')}")
        if spec.below is not None and (array.min() < 0 or array.max() >= spec.below):
            raise RequestError(f"input '{spec.name}' has values in {array.min()}..{array.max()}, the model takes 0..{spec.below - 1}")


def write_interface(interface: Interface, directory: Path) -> None:
    """Write `interface.json` into the directory of the model's file."""
    (directory / FILENAME).write_text(json.dumps(asdict(interface), indent=2) + "\n")


def read_interface(directory: Path) -> Interface:
    """Read `interface.json`.

    Raises:
        ConfigError: The file is missing or invalid.
    """
    path = directory / FILENAME
    try:
        document = json.loads(path.read_text())
        inputs, outputs = (tuple(_spec(entry) for entry in document[key]) for key in ("inputs", "outputs"))
        return Interface(inputs, outputs, document["maximum"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(f"'{path}' does not describe a model ({exc!r}): build the model again") from exc


def by_name(interface: Interface, output_names: Sequence[str], outputs: Sequence[Array]) -> list[Array]:
    """Return the requested outputs, in the requested order."""
    arrays = {spec.name: array for spec, array in zip(interface.outputs, outputs, strict=True)}
    return [arrays[name] for name in output_names]


def _without_names(spec: TensorSpec) -> TensorSignature:
    return TensorSignature(spec.name, spec.data_type, tuple(dim if isinstance(dim, int) else -1 for dim in spec.dims))


def _names(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(spec.name for spec in specs)


def _described(spec: TensorSpec, known: Sizes) -> str:
    dims = (dim if isinstance(dim, int) else known.get(dim, dim) for dim in spec.dims)
    return f"[{', '.join(map(str, dims))}]"


def _spec(entry: Mapping[str, Any]) -> TensorSpec:
    if entry["data_type"] not in DTYPES:
        raise ValueError(f"unknown data type {entry['data_type']}")
    return TensorSpec(entry["name"], entry["data_type"], tuple(entry["dims"]), entry["below"])
