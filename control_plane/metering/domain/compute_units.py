"""What requests cost, in compute units: milliseconds of one instance at batch 1.

Pure; `metering/compute_costs` asks with what it has read and polled. A model's latency table comes first, else what
Triton measured of it: a backend that batches by itself answers later than Triton believes, and looks almost free there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

from control_plane.core.infer_call import InferCall

_BYTES_PER_TOKEN = 4.5
_TOKENS_AROUND_TEXT = 2
"""Measured with all-MiniLM-L6-v2's WordPiece on the 768 English texts of `text_encoder/texts`: the sum of the estimates is
0.4 % above the sum of the tokens; of single texts 90 % lie between -24 % and +30 %. With 4 bytes per token it is 12 % above.
Other languages have fewer bytes per token, and are charged less than they cost."""


@dataclass(frozen=True, slots=True)
class UnitTable:
    """Milliseconds of one row by its length in tokens, ascending; both have at least one entry."""

    lengths: tuple[int, ...]
    ms_at_batch_1: tuple[float, ...]

    def units(self, rows: int, length: float) -> float:
        """Of a request: linear between measured lengths, in proportion beyond the largest, never below the smallest."""
        lengths, ms = self.lengths, self.ms_at_batch_1
        if length >= lengths[-1]:
            return rows * ms[-1] * length / lengths[-1]
        if length <= lengths[0]:
            return rows * ms[0]
        left = bisect_right(lengths, length) - 1
        share = (length - lengths[left]) / (lengths[left + 1] - lengths[left])
        return rows * (ms[left] + share * (ms[left + 1] - ms[left]))

    def text_units(self, rows: int, text_bytes: int) -> float:
        """As `units`, of texts that a tokenizer will cut at the largest length; each is taken to be as long as their mean."""
        length = text_bytes / max(rows, 1) / _BYTES_PER_TOKEN + _TOKENS_AROUND_TEXT
        return self.units(rows, min(length, self.lengths[-1]))


def read_unit_table(entry: object) -> UnitTable | None:
    """Of a manifest's `latency_table` (format 3); None where there is none that makes sense.

    A time below that of a smaller length, which is noise, is raised to it, as the backend does.
    """
    try:
        batches, lengths, ms = entry["batches"], entry["lengths"], entry["ms"]  # type: ignore[index]
        first = [float(cell) / batches[0] for cell in ms[0]]
        if len(first) == len(lengths) > 0 and lengths[0] > 0 and _ascend(lengths) and all(0 < cell < float("inf") for cell in first):
            return UnitTable(tuple(map(int, lengths)), tuple(accumulate(first, max)))
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError):
        pass  # written by something else
    return None


def _ascend(marks: Sequence[Any]) -> bool:
    return all(low < high for low, high in pairwise(marks))


_MOST_ROWS = 65_536
"""Over gRPC a shape may say anything; a request that costs an age on paper would change what a model's pace looks like."""


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a model repository says of a model's cost."""

    table: UnitTable | None = None
    """Of the variant that its configuration names; of the reference where that leaves the choice to the backend, and of any other model."""
    steps: tuple[str, ...] = ()
    """Of an ensemble: the models that it calls; one that it calls twice is there twice."""
    is_batched: bool = True
    """Whether the first dimension of its inputs is that of the batch."""
    by_variant: Mapping[str, UnitTable] = field(default_factory=dict)
    """Of the variants that the backend may choose among. Which one it serves only it knows; the tables of all are those of one machine."""

    def table_of(self, served: str | None) -> UnitTable | None:
        """The one to charge by; `served` is what the backend has told, if it has."""
        return self.table if served is None else self.by_variant.get(served, self.table)


@dataclass(frozen=True, slots=True)
class RequestCost:
    """What a request to a model costs, its steps taken together: worked out ahead, since every request asks."""

    tables: tuple[UnitTable, ...] = ()
    counted: tuple[str, ...] = ()
    """The steps without a table, which are charged by what Triton counts; one that is called twice is there twice."""
    mean_ms: float | None = None
    """Per row, of all of these that were measured; None where there is none."""
    is_batched: bool = True

    def rows(self, call: InferCall) -> int:
        """Of the batch; 1 for a model without a batch dimension, and where the request does not say."""
        return min(call.inputs[0].shape[0], _MOST_ROWS) if self.is_batched and call.inputs and call.inputs[0].shape else 1

    def table_units(self, call: InferCall, rows: int) -> float:
        """What it is charged by tables. `rows` are the call's."""
        units = 0.0
        if self.tables:
            length = _length(call)
            for table in self.tables:
                units += table.text_units(rows, call.text_bytes) if length is None else table.units(rows, length)
        return units

    def counted_units(self, rows: int) -> float | None:
        """What the rest is expected to cost; None where nothing is known of it."""
        if self.mean_ms is not None:
            return rows * self.mean_ms
        return 0.0 if self.tables else None


UNKNOWN = RequestCost()
"""Of a model of which nothing is known."""


def estimated_tokens(text_bytes: int) -> int:
    """Of a text of so many bytes, of a model that does not say."""
    return round(text_bytes / _BYTES_PER_TOKEN) + _TOKENS_AROUND_TEXT


def _length(call: InferCall) -> int | None:
    """Of the rows; None where they are texts, or nothing that a length can be told of."""
    for tensor in call.inputs:
        if len(tensor.shape) == 2 and tensor.datatype != "BYTES":
            return tensor.shape[1]
    return None


def request_costs(
    costs: Mapping[str, ModelCost], mean_ms: Mapping[str, float], served: Mapping[str, str] = MappingProxyType({})
) -> dict[str, RequestCost]:
    """By model, with `mean_ms` of an inference and the variant that is `served` by model; an ensemble costs what its known steps do."""
    tables = {model: cost.table_of(served.get(model)) for model, cost in costs.items()}
    return {model: _request_cost(model, costs, tables, mean_ms) for model in costs.keys() | mean_ms.keys()}


def _request_cost(
    model: str, costs: Mapping[str, ModelCost], known: Mapping[str, UnitTable | None], mean_ms: Mapping[str, float]
) -> RequestCost:
    tables, counted = [], []
    for step in _steps(model, costs, ()):
        table = known.get(step)
        if table is not None:
            tables.append(table)
        else:
            counted.append(step)
    measured = [mean_ms[step] for step in counted if step in mean_ms]
    is_batched = costs[model].is_batched if model in costs else True
    return RequestCost(tuple(tables), tuple(counted), sum(measured) if measured else None, is_batched)


def _steps(model: str, costs: Mapping[str, ModelCost], within: tuple[str, ...]) -> Iterator[str]:
    """The models that compute, each as often as it is called; a cycle, which Triton refuses, leads nowhere."""
    if model in within:
        return
    if model not in costs or not costs[model].steps:
        yield model
        return
    for step in costs[model].steps:
        yield from _steps(step, costs, (*within, model))
