"""Reads users' own traces: CSV with a header and a line for each request.

    seconds,model,service_ms
    0.000,encoder,9.5
    0.013,reranker,

`seconds` counts from any point in time (seconds since 1970 will do), and lines may come in any order.
`service_ms` is the time a server works on the request; the column, or single values, may be missing. A second
file says what models cost, where they differ: `model,bytes,load_ms`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from math import inf

from control_plane.core.errors import InvalidRequest
from control_plane.core.model import MODEL_NAME
from control_plane.fleet.simulation.workload import ModelCost, Request


def parse_requests(lines: Iterable[str], service_s: float) -> list[Request]:
    """Return the requests in order of time, from 0 on; `service_s` is used where a line has no value. Raises
    InvalidRequest."""
    rows = _Rows(lines, "seconds", "model")
    requests = [
        Request(rows.number("seconds", at_least=-inf), rows.model(), rows.number("service_ms", default=1000 * service_s) / 1000)
        for _ in rows
    ]
    if not requests:
        raise InvalidRequest("the trace has no requests: write lines SECONDS,MODEL under the header")
    first_s = min(request.at_s for request in requests)
    return sorted(request._replace(at_s=request.at_s - first_s) for request in requests)


def parse_costs(lines: Iterable[str], usual: ModelCost) -> dict[str, ModelCost]:
    """Return the costs by model; those of `usual` are used where a line has no value. Raises
    InvalidRequest."""
    rows = _Rows(lines, "model")
    return {
        rows.model(): ModelCost(
            int(rows.number("bytes", default=usual.resident_bytes, at_least=1)),
            rows.number("load_ms", default=1000 * usual.load_s) / 1000,
        )
        for _ in rows
    }


class _Rows:
    """Iterator over a CSV table, which checks each value as it is read."""

    def __init__(self, lines: Iterable[str], *columns: str) -> None:
        self._reader = csv.DictReader(lines)
        self._row: dict[str, str | None] = {}
        try:
            names = self._reader.fieldnames or ()
        except csv.Error as exc:
            raise InvalidRequest(f"it is no CSV: {exc}") from exc
        missing = [column for column in columns if column not in names]
        if missing:
            raise InvalidRequest(
                f"line 1: there is no column {' and no '.join(missing)}; the first line is a header such as {','.join(columns)}"
            )

    def __iter__(self) -> _Rows:
        return self

    def __next__(self) -> None:
        try:
            self._row = next(self._reader)
        except csv.Error as exc:
            raise InvalidRequest(f"line {self._reader.line_num + 1}: it is no CSV: {exc}") from exc

    def model(self) -> str:
        """Return the model's name of the present line. Raises InvalidRequest."""
        name = (self._row["model"] or "").strip()
        if not MODEL_NAME.fullmatch(name):
            raise InvalidRequest(f"line {self._reader.line_num}: {name!r} is no name of a model")
        return name

    def number(self, column: str, *, default: float | None = None, at_least: float = 0.0) -> float:
        """Return the number in a column of the present line. Raises InvalidRequest."""
        text = (self._row.get(column) or "").strip()
        if not text and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = inf
        if not at_least <= value < inf or value == -inf:
            raise InvalidRequest(f"line {self._reader.line_num}: {column} is {text!r}; write a number{_at_least(at_least)}")
        return value


def _at_least(least: float) -> str:
    return f" of {least:g} or more" if least > -inf else ""
