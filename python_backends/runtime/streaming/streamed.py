"""Runtime of an ONNX model of whose weights only `weight_memory_mb` MiB are in memory at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnxruntime as ort

from python_backends.runtime.engines.cpu import usable_cpu_count
from python_backends.runtime.engines.session import open_part, run_function, session_options
from python_backends.runtime.errors import BackendError, ConfigError, RequestError
from python_backends.runtime.execution import Array, Run, Tensors
from python_backends.runtime.model_config import ModelConfig
from python_backends.runtime.signature import NodeArg, Signature, read_signature
from python_backends.runtime.streaming.onnx_graph import TYPE_NAMES, OnnxGraph, read_graph
from python_backends.runtime.streaming.parts import Part, make_plan, part_model, value_info
from python_backends.runtime.streaming.weight_file import PartWeights, WeightFiles
from python_backends.runtime.streaming.wire import encode, encode_fields, fields

# Each part is a session: it takes memory of its own only while it runs, and its threads sleep when it has run.
DEFAULTS = {"enable_mem_arena": "false", "session.force_spinning_stop": "1"}


class StreamedRuntime:
    """A model in parts, each with its session; one run at a time, as there is one set of buffers."""

    def __init__(self, path: Path, config: ModelConfig, budget_bytes: int) -> None:
        """Raises ConfigError: the file, or the budget, cannot be used."""
        graph = read_graph(path)
        plan = make_plan(graph, budget_bytes, config.name)
        self.held_bytes = plan.held_bytes
        self._parts = plan.parts
        self._turn = threading.Lock()
        self._runs: list[Run] = []
        self._files = WeightFiles([weight.file for weight in graph.weights.values()])
        try:
            self.signature: Signature = read_signature(
                self._open(path, graph, replace(config, parameters={**DEFAULTS, **config.parameters}))
            )
            self._weights = PartWeights(self._files, plan.parts, plan.buffer_bytes)
        except BackendError as exc:
            self._files.close()
            raise exc if isinstance(exc, ConfigError) else ConfigError(f"model '{config.name}': {exc}") from exc

    def run(self, output_names: Sequence[str], inputs: Tensors) -> Sequence[Array]:
        """See `Runtime.run`."""
        wanted = {tensor.name for tensor in self.signature.inputs}
        if inputs.keys() != wanted:
            raise RequestError(f"the inputs must be {', '.join(sorted(wanted))}, not {', '.join(sorted(inputs)) or 'none'}")
        with self._turn:
            assert self._runs, "closed"
            tensors = dict(inputs)
            for index, (part, run) in enumerate(zip(self._parts, self._runs, strict=True)):
                self._run_part(index, part, run, tensors, keep=output_names)
            return [tensors[name] for name in output_names]

    def _run_part(self, index: int, part: Part, run: Run, tensors: dict[str, Array], *, keep: Sequence[str]) -> None:
        given = {name: tensors[name] for name in part.inputs}
        for lookup in part.lookups:
            rows, places = self._files.rows(lookup.table, tensors[lookup.ids])
            given |= {lookup.rows_input: rows, lookup.ids_input: places}
        made = run(part.outputs, {**given, **self._weights.of(index)})
        self._weights.done(index)
        tensors |= zip(part.outputs, made, strict=True)
        for name in part.done_with:
            if name not in keep:
                tensors.pop(name, None)

    def close(self) -> None:
        """Drop the sessions, the buffers and the files."""
        with self._turn:
            self._runs.clear()
            self._weights.close()
            self._files.close()

    def _open(self, path: Path, graph: OnnxGraph, config: ModelConfig) -> _Whole:
        """Open a session for each part, in order: what one gives, the next are given."""
        options = session_options(config, cpu_count=usable_cpu_count())
        told, given = _Whole(), dict(graph.inputs)
        for part in self._parts:
            for lookup in part.lookups:
                given[lookup.ids_input] = _renamed(given[lookup.ids], lookup.ids_input)
            session = open_part(part_model(part, graph, given), path, config, options)
            self._runs.append(run_function(session, config))
            given |= {arg.name: value_info(arg.name, _type(arg), arg.shape) for arg in session.get_outputs()}
            told.add(
                session, {name: name for name in (*graph.inputs, *graph.outputs)} | {each.ids_input: each.ids for each in part.lookups}
            )
        told.order(graph)
        return told


@dataclass(frozen=True, slots=True)
class _Arg:
    name: str
    type: str
    shape: Sequence[int | str | None]


class _Whole:
    """What the sessions of the parts say of the model's own inputs and outputs."""

    def __init__(self) -> None:
        self._inputs: dict[str, NodeArg] = {}
        self._outputs: dict[str, NodeArg] = {}

    def add(self, session: ort.InferenceSession, names: Mapping[str, str]) -> None:
        """`names` are the model's, by the session's."""
        for known, args in ((self._inputs, session.get_inputs()), (self._outputs, session.get_outputs())):
            known |= {names[arg.name]: _Arg(names[arg.name], arg.type, arg.shape) for arg in args if arg.name in names}

    def order(self, graph: OnnxGraph) -> None:
        """Keep the model's own, in its order."""
        self._inputs = {name: self._inputs[name] for name in graph.inputs}
        self._outputs = {name: self._outputs[name] for name in graph.outputs}

    def get_inputs(self) -> Sequence[NodeArg]:
        return [*self._inputs.values()]

    def get_outputs(self) -> Sequence[NodeArg]:
        return [*self._outputs.values()]

    def get_overridable_initializers(self) -> Sequence[NodeArg]:
        return []


def _renamed(info: bytes, name: str) -> bytes:
    return encode((1, name)) + encode_fields(each for each in fields(info) if each[0] != 1)


def _type(arg: NodeArg) -> int:
    if arg.type not in TYPE_NAMES:
        raise ConfigError(f"its weights cannot be streamed: '{arg.name}' is a {arg.type}")
    return TYPE_NAMES[arg.type]
