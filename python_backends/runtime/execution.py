"""Run waiting requests on one session in groups: plan, assemble, run, split.

A backend brings the two decisions as plain functions: `plan` says which requests run together, `assemble` makes one array of theirs; a
smarter plan is another function. A request that fails its group is found by running the group again one by one, so that its neighbours are
answered; what the client has cancelled is not computed. No Triton here: `triton.py` turns its requests into these and the answers back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.runtime.errors import BackendError, ExecutionError, RequestCancelled

Array = NDArray[Any]
Tensors = Mapping[str, Array]
Answer = Tensors | BackendError
Run = Callable[[Sequence[str], Tensors], Sequence[Array]]
Plan = Callable[[Sequence[Tensors]], Sequence[Sequence[int]]]
Assemble = Callable[[Sequence[Array]], Array]


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """One request: its inputs [batch, ...] (the batch dimension only where the model has one) and the outputs it wants."""

    inputs: Tensors
    requested_output_names: Collection[str]
    is_cancelled: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class GroupRunner:
    """Answers requests with a session's `run`.

    `output_names` are those the model offers. `scheduler_drops_cancelled` says that what was cancelled in the queue has just been dropped,
    as Triton's dynamic batcher does: the first group is then not asked again, since asking costs a round trip to the server for each
    request (110 us measured), while later groups have waited for the earlier ones and are.
    """

    run: Run
    plan: Plan
    assemble: Assemble
    output_names: Sequence[str]
    scheduler_drops_cancelled: bool

    def execute(self, requests: Sequence[InferenceRequest]) -> list[Answer]:
        """One answer per request, in their order: its outputs by name, or the error to send."""
        answers: dict[int, Answer] = {}
        for position, group in enumerate(self.plan([request.inputs for request in requests])):
            if position or not self.scheduler_drops_cancelled:
                cancelled = [index for index in group if requests[index].is_cancelled()]
                answers |= dict.fromkeys(cancelled, RequestCancelled("the request was cancelled by its client"))
                group = [index for index in group if index not in cancelled]
            if group:
                answers |= zip(group, self._execute_group([requests[index] for index in group]), strict=True)
        return [answers[index] for index in range(len(requests))]

    def _execute_group(self, group: Sequence[InferenceRequest]) -> list[Answer]:
        try:
            return [*self._run_together(group)]
        except BackendError as exc:
            if len(group) == 1:
                return [exc]
            return [answer for request in group for answer in self._execute_group([request])]

    def _run_together(self, group: Sequence[InferenceRequest]) -> list[Tensors]:
        names = [name for name in self.output_names if any(name in request.requested_output_names for request in group)]
        inputs = {name: self.assemble([request.inputs[name] for request in group]) for name in group[0].inputs}
        # A session that is asked for nothing computes everything.
        outputs = dict(zip(names, self.run(names, inputs), strict=True)) if names else {}
        return split(outputs, group)


def group_by_shape(requests: Sequence[Tensors]) -> list[list[int]]:
    """Indices of requests whose inputs differ in nothing but the batch, in order of first arrival."""
    groups: dict[frozenset[tuple[str, tuple[int, ...]]], list[int]] = {}
    for index, inputs in enumerate(requests):
        key = frozenset((name, array.shape[1:]) for name, array in inputs.items())
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def one_by_one(requests: Sequence[Tensors]) -> list[list[int]]:
    """Each request alone, for a model without a batch dimension."""
    return [[index] for index in range(len(requests))]


def concatenate(arrays: Sequence[Array]) -> Array:
    """Arrays [batch_i, ...] of one shape as one [sum of batch_i, ...]; a single one as it is, without a copy."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def split(outputs: Tensors, group: Sequence[InferenceRequest]) -> list[Tensors]:
    """Cut outputs [sum of batch_i, ...] into each request's own [batch_i, ...], of those it asked for.

    A single request gets them as they are, so a model without a batch dimension may return any shape.

    Raises:
        ExecutionError: An output has not one row per input row.
    """
    if len(group) == 1:
        return [{name: array for name, array in outputs.items() if name in group[0].requested_output_names}]
    ends = list(accumulate((next(iter(request.inputs.values())).shape[0] for request in group), initial=0))
    for name, array in outputs.items():
        if array.shape[:1] != (ends[-1],):
            raise ExecutionError(
                f"output '{name}' has the shape {list(array.shape)} for a batch of {ends[-1]}: its first dimension is no batch"
            )
    return [
        {name: array[start:end] for name, array in outputs.items() if name in request.requested_output_names}
        for request, (start, end) in zip(group, pairwise(ends), strict=True)
    ]
