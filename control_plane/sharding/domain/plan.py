"""Plan of a sharded model: which parts are computed from which tensors, read in its ensemble's configuration.

Source: Triton's model_config.proto (`ensemble_scheduling`) as JSON, and what Triton's ensemble scheduler demands of one.
`models/adapters/model_descriptions` reads a plan to warn whoever wrote the configuration, `inference/sharded_models` to
carry it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from control_plane.core.errors import ModelLoadFailed

ONLY_VERSION = "1"
"""Version of every sharded model: an ensemble has no files, and one version folder."""
MAX_STEPS = 64
"""Most steps of a plan: each is a request of its own, and all may wait at the same time."""


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """Input or output of the whole model, as its configuration declares it."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    """Without the batch dimension; -1 for any size."""
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Step of a plan: one request to one part."""

    model: str
    version: str
    """Empty for the one that the part's policy chooses."""
    inputs: tuple[tuple[str, str], ...]
    """The part's inputs, each with the tensor of the plan that it takes."""
    outputs: tuple[tuple[str, str], ...]
    """The part's outputs, each with the tensor of the plan that it gives."""

    @property
    def takes(self) -> frozenset[str]:
        return frozenset(tensor for _, tensor in self.inputs)

    @property
    def gives(self) -> frozenset[str]:
        return frozenset(tensor for _, tensor in self.outputs)


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps of a sharded model, each behind those that it takes tensors from."""

    model: str
    max_batch_size: int
    inputs: tuple[DeclaredTensor, ...]
    outputs: tuple[DeclaredTensor, ...]
    steps: tuple[Step, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """The models that the steps name, each once."""
        return tuple(dict.fromkeys(step.model for step in self.steps))

    def steps_for(self, outputs: Iterable[str]) -> tuple[Step, ...]:
        """The steps that these outputs are computed by, in order; as Triton does, the others are left out."""
        wanted, found = set(outputs), list[Step]()
        for step in reversed(self.steps):
            if not wanted.isdisjoint(step.gives):
                wanted |= step.takes
                found.append(step)
        return tuple(reversed(found))


@lru_cache(maxsize=4096)
def read_plan(config: str) -> Plan:
    """Read the plan in an ensemble's configuration (JSON). Raises ModelLoadFailed: its steps cannot be carried out."""
    try:
        found = orjson.loads(config)
        plan = Plan(
            found["name"],
            int(found.get("max_batch_size", 0)),
            tuple(_declared(found["input"])),
            tuple(_declared(found["output"])),
            tuple(_steps(found["ensemble_scheduling"]["step"])),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise ModelLoadFailed("a sharded model needs the configuration of an ensemble, with inputs, outputs and steps") from exc
    for fault in _faults(plan):
        raise ModelLoadFailed(f"model {plan.model!r} is sharded, but its steps cannot be carried out: {fault}")
    return Plan(plan.model, plan.max_batch_size, plan.inputs, plan.outputs, tuple(_in_order(plan)))


def _declared(entries: Sequence[Mapping[str, Any]]) -> Iterator[DeclaredTensor]:
    for entry in entries:
        datatype = entry["data_type"].removeprefix("TYPE_")
        dims = tuple(int(each) for each in entry.get("dims", ()))
        yield DeclaredTensor(entry["name"], "BYTES" if datatype == "STRING" else datatype, dims, bool(entry.get("optional")))


def _steps(entries: Sequence[Mapping[str, Any]]) -> Iterator[Step]:
    for entry in entries:
        version = str(entry.get("model_version", "-1"))
        inputs, outputs = entry.get("input_map", {}), entry.get("output_map", {})
        yield Step(entry.get("model_name", ""), "" if version.startswith("-") else version, tuple(inputs.items()), tuple(outputs.items()))


def _faults(plan: Plan) -> Iterator[str]:
    """Yield the faults for which a plan cannot be carried out; its caller names the first one."""
    if not 0 < len(plan.steps) <= MAX_STEPS:
        yield f"it has {len(plan.steps)} steps, and may have 1 to {MAX_STEPS}"
    given = {tensor.name: "the request" for tensor in plan.inputs}
    for step in plan.steps:
        if not step.model:
            yield "a step names no model"
        if step.model == plan.model:
            yield f"a step is the model {step.model!r} itself"
        if not step.inputs or not step.outputs:
            yield f"the step of {step.model!r} has no {'output_map' if step.inputs else 'input_map'}"
        for _, tensor in step.outputs:
            if tensor in given:
                yield f"the tensor {tensor!r} is given twice, by {given[tensor]} and by {step.model!r}"
            given[tensor] = repr(step.model)
    for step in plan.steps:
        if missing := sorted(step.takes - given.keys()):
            yield f"no step gives {missing[0]!r}, which {step.model!r} takes, and it is no input"
    for output in plan.outputs:
        if output.name not in given:
            yield f"no step gives the output {output.name!r}"
    if len(ordered := list(_in_order(plan))) < len(plan.steps):
        waiting = dict.fromkeys(step.model for step in plan.steps if step not in ordered)
        yield f"these steps wait for each other: {', '.join(map(repr, waiting))}"


def _in_order(plan: Plan) -> Iterator[Step]:
    """The steps, each behind those that it takes tensors from; without those that wait for each other."""
    there, left = {tensor.name for tensor in plan.inputs}, list(plan.steps)
    while ready := [step for step in left if step.takes <= there]:
        yield from ready
        there.update(*(step.gives for step in ready))
        left = [step for step in left if step not in ready]
