"""Runs requests on one session in groups: plan, assemble, run, split.

A backend supplies two functions: `plan` decides which requests run together, `assemble` combines their
arrays. If a group fails, its requests are run again one by one, so that only the faulty request gets an
error. Cancelled requests are not computed. This module does not know Triton: `triton.py` converts its
requests and responses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
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
    """A request: its inputs [batch, ...] (with a batch dimension if the model has one) and the requested
    outputs.
    """

    inputs: Tensors
    requested_output_names: Collection[str]
    is_cancelled: Callable[[], bool]
    yields: bool = False
    """Whether it is work in the background, which is to hold up no other request."""
    time_left_s: float = inf
    """How long it may wait, from when it came; infinity where it does not say so."""


@dataclass(frozen=True, slots=True)
class GroupRunner:
    """Runner of requests on a session's `run`.

    `output_names` are the model's outputs. `scheduler_drops_cancelled` says that requests cancelled in the
    queue were dropped just now, as Triton's dynamic batcher does. The first group is then not checked for
    cancellation, since each check is a round trip to the server (110 us measured); later groups are, since
    they have waited for the earlier ones.
    """

    run: Run
    plan: Plan
    assemble: Assemble
    output_names: Sequence[str]
    scheduler_drops_cancelled: bool

    def execute(self, requests: Sequence[InferenceRequest]) -> list[Answer]:
        """Return one answer per request, in order: its outputs by name, or the error to send."""
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
        # Without a requested output nothing is run: a session called with no output names computes all
        # outputs.
        outputs = dict(zip(names, self.run(names, inputs), strict=True)) if names else {}
        return split(outputs, group)


def group_by_shape(requests: Sequence[Tensors]) -> list[list[int]]:
    """Group requests whose inputs differ only in the batch size; return their indices, in order of first
    arrival.
    """
    groups: dict[frozenset[tuple[str, tuple[int, ...]]], list[int]] = {}
    for index, inputs in enumerate(requests):
        key = frozenset((name, array.shape[1:]) for name, array in inputs.items())
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def one_by_one(requests: Sequence[Tensors]) -> list[list[int]]:
    """Make a group of each request, for a model without a batch dimension."""
    return [[index] for index in range(len(requests))]


def concatenate(arrays: Sequence[Array]) -> Array:
    """Concatenate arrays [batch_i, ...] to [sum of batch_i, ...]; a single one is returned without a copy."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def split(outputs: Tensors, group: Sequence[InferenceRequest]) -> list[Tensors]:
    """Split outputs [sum of batch_i, ...] into each request's [batch_i, ...], keeping those that it
    requested.

    A single request gets the outputs unchanged, so a model without a batch dimension may return any shape.

    Raises:
        ExecutionError: An output does not have one row per input row.
    """
    if len(group) == 1:
        return [{name: array for name, array in outputs.items() if name in group[0].requested_output_names}]
    ends = list(accumulate((next(iter(request.inputs.values())).shape[0] for request in group), initial=0))
    for name, array in outputs.items():
        if array.shape[:1] != (ends[-1],):
            raise ExecutionError(
                f"output '{name}' has the shape {list(array.shape)} for a batch of {ends[-1]}: its first dimension is not the batch"
            )
    return [
        {name: array[start:end] for name, array in outputs.items() if name in request.requested_output_names}
        for request, (start, end) in zip(group, pairwise(ends), strict=True)
    ]
