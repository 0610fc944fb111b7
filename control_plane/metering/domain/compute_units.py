"""Cost of requests in compute units: milliseconds of one instance at batch 1; pure.

`metering/compute_costs` calls it with what it has read and polled. A model's latency table has precedence
over Triton's statistics: a backend that batches by itself looks almost free there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

from control_plane.core.algorithms.closure import MAX_MODELS
from control_plane.core.infer_call import InferCall

_BYTES_PER_TOKEN = 4.5
_TOKENS_AROUND_TEXT = 2
"""Bytes per token, and special tokens per text, to estimate a text's length in tokens without a tokenizer.
Measured with all-MiniLM-L6-v2's WordPiece on the 768 English texts of `model_repository/text_encoder/texts`: the sum of the
estimates is 0.4 % above the sum of the tokens; of single texts 90 % lie between -24 % and +30 %. With 4 bytes
per token it is 12 % above. Other languages have fewer bytes per token, and are charged less than they
cost."""


@dataclass(frozen=True, slots=True)
class UnitTable:
    """Latency table: milliseconds of one row by its length in tokens, ascending, with at least one entry."""

    lengths: tuple[int, ...]
    ms_at_batch_1: tuple[float, ...]

    def units(self, rows: int, length: float) -> float:
        """Return a request's units: interpolated between measured lengths, proportional beyond the largest,
        constant below.
        """
        lengths, ms = self.lengths, self.ms_at_batch_1
        if length >= lengths[-1]:
            return rows * ms[-1] * length / lengths[-1]
        if length <= lengths[0]:
            return rows * ms[0]
        left = bisect_right(lengths, length) - 1
        share = (length - lengths[left]) / (lengths[left + 1] - lengths[left])
        return rows * (ms[left] + share * (ms[left + 1] - ms[left]))

    def text_units(self, rows: int, text_bytes: int) -> float:
        """Return the units of texts, all taken to be of mean length; a tokenizer cuts them at the largest
        length.
        """
        length = text_bytes / max(rows, 1) / _BYTES_PER_TOKEN + _TOKENS_AROUND_TEXT
        return self.units(rows, min(length, self.lengths[-1]))


def read_unit_table(entry: object) -> UnitTable | None:
    """Read a manifest's `latency_table` (format 3); None where there is no valid one.

    A time below that of a shorter length is noise, and is raised to it, as the backend does.
    """
    try:
        batches, lengths, ms = entry["batches"], entry["lengths"], entry["ms"]  # type: ignore[index]
        first = [float(cell) / batches[0] for cell in ms[0]]
        if len(first) == len(lengths) > 0 and lengths[0] > 0 and _ascend(lengths) and all(0 < cell < float("inf") for cell in first):
            return UnitTable(tuple(map(int, lengths)), tuple(accumulate(first, max)))
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError):
        pass  # not a table of ours
    return None


def _ascend(marks: Sequence[Any]) -> bool:
    return all(low < high for low, high in pairwise(marks))


_MAX_ROWS = 65_536
"""Most rows that a request is charged for. A shape may claim anything, and one absurd request would distort
the model's estimated pace."""
_MAX_CALLS = 500
"""Most calls of models in one request to an ensemble that are counted. Ten ensembles of ten steps, each the next one ten times,
make ten thousand million."""


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Cost of a model as its repository records it."""

    table: UnitTable | None = None
    """Table of the variant that the configuration names; of the reference variant where the backend may
    choose."""
    steps: tuple[str, ...] = ()
    """Models that an ensemble calls; one that it calls twice is listed twice."""
    is_batched: bool = True
    """Whether the first dimension of its inputs is the batch."""
    by_variant: Mapping[str, UnitTable] = field(default_factory=dict)
    """Tables of the variants that the backend may choose among, all measured on one machine. Only the backend
    knows which one it serves."""

    def table_of(self, served: str | None) -> UnitTable | None:
        """Return the table to charge by; `served` is the variant that the backend has reported, if any."""
        return self.table if served is None else self.by_variant.get(served, self.table)


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Cost function of requests to one model, over all its steps; computed ahead, since every request needs
    it.
    """

    tables: tuple[UnitTable, ...] = ()
    counted: tuple[str, ...] = ()
    """Steps without a table, which are charged by Triton's statistics; one that is called twice is listed
    twice."""
    mean_ms: float | None = None
    """Mean milliseconds per row, summed over those steps that were measured; None if none was."""
    is_batched: bool = True

    def rows(self, call: InferCall) -> int:
        """Return the request's batch size; 1 for a model without a batch dimension, or a request without a
        shape.
        """
        if not (self.is_batched and call.inputs and call.inputs[0].shape):
            return 1
        rows = call.inputs[0].shape[0]
        return rows if rows < _MAX_ROWS else _MAX_ROWS

    def table_units(self, call: InferCall, rows: int) -> float:
        """Return the units that the request is charged by tables; `rows` is the result of `rows`."""
        units = 0.0
        if self.tables:
            length = _length(call)
            for table in self.tables:
                units += table.text_units(rows, call.text_bytes) if length is None else table.units(rows, length)
        return units

    def counted_units(self, rows: int) -> float | None:
        """Return the expected units of the steps without a table; None where nothing is known of them."""
        if self.mean_ms is not None:
            return rows * self.mean_ms
        return 0.0 if self.tables else None


UNKNOWN = RequestCost()
"""Cost function of a model about which nothing is known."""


def estimated_tokens(text_bytes: int) -> int:
    """Estimate the tokens of a text of this many bytes, for a model that does not report them."""
    return round(text_bytes / _BYTES_PER_TOKEN) + _TOKENS_AROUND_TEXT


def _length(call: InferCall) -> int | None:
    """Return the length of the rows, in tokens; None where they are texts, or have no length."""
    for tensor in call.inputs:
        if len(tensor.shape) == 2 and tensor.datatype != "BYTES":
            return tensor.shape[1]
    return None


def request_costs(
    costs: Mapping[str, ModelCost],
    mean_ms: Mapping[str, float],
    served: Mapping[str, str] = MappingProxyType({}),
    *,
    of: Iterable[str] | None = None,
) -> dict[str, RequestCost]:
    """Compute the cost functions by model; where `of` is given, those of these models only.

    `mean_ms` are the measured milliseconds of a row, `served` the reported variants. An ensemble costs the
    sum of its known steps, of the first `_MAX_CALLS` if it calls models more often.
    """
    models = costs.keys() | mean_ms.keys() if of is None else of
    return {model: _request_cost(model, costs, mean_ms, served) for model in models}


def _request_cost(model: str, costs: Mapping[str, ModelCost], mean_ms: Mapping[str, float], served: Mapping[str, str]) -> RequestCost:
    tables, counted = [], []
    for step in _steps(model, costs):
        table = costs[step].table_of(served.get(step)) if step in costs else None
        if table is not None:
            tables.append(table)
        else:
            counted.append(step)
    measured = [mean_ms[step] for step in counted if step in mean_ms]
    is_batched = costs[model].is_batched if model in costs else True
    return RequestCost(tuple(tables), tuple(counted), sum(measured) if measured else None, is_batched)


def _steps(model: str, costs: Mapping[str, ModelCost]) -> Iterator[str]:
    """Return the models that compute, each as often as it is called, in the first `_MAX_CALLS` calls. Cycles, and chains of more
    ensembles than can be loaded, are cut.
    """
    left: list[tuple[str, tuple[str, ...]]] = [(model, ())]
    for _ in range(_MAX_CALLS):
        if not left:
            return
        name, within = left.pop()
        cost = costs.get(name)
        if cost is None or not cost.steps:
            yield name
        elif name not in within and len(within) < MAX_MODELS:
            deeper = (*within, name)
            left += [(step, deeper) for step in reversed(cost.steps[:_MAX_CALLS])]
