"""Check of a request for a sharded model against its configuration, with the words of Triton, which does not see it whole.

Source: Triton's InferenceRequest::Normalize (core r24.10), measured against server 2.51.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from control_plane.core.errors import InvalidRequest
from control_plane.core.tensor import RawTensor, Tensor
from control_plane.sharding.domain.plan import DeclaredTensor, Plan

_ABOUT_BATCHES = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input shape. "
    "If you want to specify the full shape including the batch dim in your input dims config, try setting max_batch_size to zero. "
    "See the model configuration docs for more info on max_batch_size."
)


def wanted_outputs(plan: Plan, named: Sequence[str]) -> tuple[str, ...]:
    """The outputs that a request asks for, all where it names none, in the order in which Triton has an ensemble's. Raises
    InvalidRequest."""
    known = [output.name for output in reversed(plan.outputs)]
    for name in named:
        if name not in known:
            raise InvalidRequest(f"unexpected inference output '{name[:100]}' for model '{plan.model}'")
    return tuple(name for name in known if not named or name in named)


def check_inputs(plan: Plan, request_id: str, inputs: Mapping[str, RawTensor]) -> None:
    """Check names, data types and shapes. Raises InvalidRequest."""
    if fault := next(_faults(plan, inputs), None):
        raise InvalidRequest(f"[request id: {request_id or '<id_unknown>'}] {fault}")


def _faults(plan: Plan, inputs: Mapping[str, RawTensor]) -> Iterator[str]:
    declared = {each.name: each for each in plan.inputs}
    needed = [name for name, each in declared.items() if not each.is_optional]
    missing = sorted(set(needed) - inputs.keys())
    if missing or len(inputs) > len(declared):
        yield (
            f"expected {len(declared)} inputs but got {len(inputs)} inputs for model '{plan.model}'. Got input(s) [{_quoted(inputs)}], "
            f"but missing required input(s) [{_quoted(missing)}]. Please provide all required input(s)."
        )
    for name, given in inputs.items():
        if name not in declared:
            yield f"unexpected inference input '{name[:100]}' for model '{plan.model}'"
        yield from _faults_of(plan, declared[name], given.tensor)
    batches = {given.tensor.shape[0] for given in inputs.values()} if plan.max_batch_size else set[int]()
    if len(batches) > 1:
        yield f"input '{next(iter(inputs))}' batch size does not match other inputs for '{plan.model}'"
    if batches and max(batches) > plan.max_batch_size:
        yield f"inference request batch-size must be <= {plan.max_batch_size} for '{plan.model}'"


def _faults_of(plan: Plan, declared: DeclaredTensor, given: Tensor) -> Iterator[str]:
    if given.datatype != declared.datatype:
        yield f"inference input '{given.name}' data-type is '{given.datatype}', but model '{plan.model}' expects '{declared.datatype}'"
    expected = (-1, *declared.dims) if plan.max_batch_size else declared.dims
    fits = len(expected) == len(given.shape) and all(wanted in (-1, found) for wanted, found in zip(expected, given.shape, strict=True))
    if not fits:
        yield (
            f"unexpected shape for input '{given.name}' for model '{plan.model}'. Expected {_shape(expected)}, got {_shape(given.shape)}."
            f"{_ABOUT_BATCHES if plan.max_batch_size else ''}"
        )


def _shape(dims: Iterable[int]) -> str:
    return f"[{','.join(map(str, dims))}]"


def _quoted(names: Iterable[str]) -> str:
    return ",".join(f"'{name[:100]}'" for name in sorted(names)[:20])
