"""Output of `--list` for a target: its state, and the measurements in its manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from python_backends.export.builder import machine_needed
from python_backends.export.discovery import Target
from python_backends.export.manifest import read_manifest, stale_reason


def describe(target: Target) -> Iterator[str]:
    """Yield a line with the target's state, and further lines for what is built."""
    state = stale_reason(target.directory, target.recipe.inputs()) or "up to date"
    needs = machine_needed(target)
    yield f"{target.label}: {state}{f', {needs}' if needs else ''}"
    if manifest := read_manifest(target.directory):
        for name, artefact in manifest.artefacts.items():
            yield f"  {name}  {artefact.size_bytes / 1e6:.1f} MB  sha256 {artefact.sha256[:12]}"
        yield from _measured(manifest.document)


def _measured(document: Mapping[str, Any]) -> Iterator[str]:
    for check, measures in document["agreement"].items():
        yield f"  {check}: {_measures(measures)}"
    if document.get("gate"):
        yield f"  gate: {_measures(document['gate'])}"
        yield f"  auto: {document['auto_objection'] or 'may be chosen'}"
    if table := document.get("latency_table"):
        machine = document["machine"]
        yield f"  {document['runtime']}, {table['threads']} threads of {machine['processor']} ({machine['kind']}): {_latencies(table)}"
        yield f"  memory: {document['resident_bytes'] / 1e6:.0f} MB"


def _latencies(table: Mapping[str, Any]) -> str:
    batches, lengths, ms = table["batches"], table["lengths"], table["ms"]
    # Four cells: a single short row, a single long row, the middle, and the largest batch.
    cells = [(0, 0), (0, -1), (len(batches) // 2, len(lengths) // 2), (-1, -1)]
    return ", ".join(
        f"{batches[row]} x {lengths[column]} {ms[row][column]:{'.0f' if ms[row][column] >= 100 else '.3g'}} ms" for row, column in cells
    )


def _measures(measures: Mapping[str, float]) -> str:
    return ", ".join(f"{measure} {value}" for measure, value in measures.items())
