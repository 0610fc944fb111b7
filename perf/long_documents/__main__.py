"""Documents of dozens of pages, many of them repeated: a plain synchronous server beside the platform on the same cores.

    python -m perf.long_documents [--rounds 5] [--documents 12] [--pages 24] [--repeats 0.4] [--callers 4 12] [--cores 1] [--ways ...]
                                  [--paragraphs FILE]

The plain server is Flask, a thread a request, and PyTorch as the model's card shows it; it gets a document in one call. The platform is
`tidegate serve` as shipped (asynchronous, its queue and batches, cache, ONNX, INT8), asked by `/v1/embeddings`; then with one part after
the other switched off, and with the pruned variant. Every server has the same few cores, the callers another one. Vectors are compared
with Flask's first. Writes perf/results/long-documents.json and .md.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from functools import partial
from pathlib import Path

import numpy as np

from perf.load import closed_loop
from perf.load.inference_requests import Vector
from perf.load.texts import PARAGRAPHS, QUERIES, Texts
from perf.long_documents.documents import Document, documents
from perf.long_documents.report import AT_PEAK, FLASK, WAYS, Case, Report, Run
from perf.long_documents.ways import Way, limited_to, start_ways
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result

_CHECKED_PAGES = 8
_MINIMUM_COSINE = 0.9
"""Least similarity of the worst page to PyTorch's, which shows that the right thing is computed; each variant's own gate is stricter."""


def main() -> None:
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--documents", type=int, default=12, help="of one case in one round")
    parser.add_argument("--pages", type=int, default=24)
    parser.add_argument("--repeats", type=float, default=0.4, help="share of documents that are copies of an earlier one")
    parser.add_argument("--callers", type=int, nargs=2, default=[4, 12], help="as a rule, and at peak")
    parser.add_argument("--cores", type=int, default=1, help="for each server and all that it starts")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--paragraphs", type=Path, default=PARAGRAPHS, help="what pages are made of")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    texts = Texts(QUERIES, arguments.paragraphs)
    with contextlib.ExitStack() as stack:
        with limited_to(arguments.cores):
            ways = start_ways(stack, arguments.ways)
        agreement = _require_agreement(ways, texts)
        cases = [
            Case(name, callers) for callers in arguments.callers for name in ways if callers == min(arguments.callers) or name in AT_PEAK
        ]
        runs = interleave({case: partial(_run, ways[case.way], case, _decks(texts, case, arguments)) for case in cases}, arguments.rounds)
    return Result(runs, texts.describe()[1:2], {"cosine_min": agreement})


def _decks(texts: Texts, case: Case, arguments: argparse.Namespace) -> itertools.starmap[list[Document]]:
    """A case's documents, round by round; no other case has the same, since two may share a server and its cache."""
    one_round = partial(documents, texts, count=arguments.documents, pages=arguments.pages, repeats=arguments.repeats)
    return itertools.starmap(lambda number: one_round(seed=f"{case} {number}"), ((number,) for number in itertools.count()))


def _run(way: Way, case: Case, decks: itertools.starmap[list[Document]]) -> Run:
    harness.say(f"{case.way}, {case.callers} callers")
    handed_in = next(decks)
    asks = [ask for document in handed_in for ask in way.asks(document)]
    before = way.cache_answers()
    loaded = closed_loop.run("http", way.address, iter(asks), callers=case.callers, duration_s=3600.0)
    return Run(
        mean_s=sum(float(values.sum()) for values in loaded.latencies_ms.values()) / 1e3 / len(handed_in),
        documents_per_s=len(handed_in) / loaded.seconds,
        hit_ratio=(way.cache_answers() - before).hit_ratio,
        errors=loaded.errors,
    )


def _require_agreement(ways: dict[str, Way], texts: Texts) -> dict[str, float]:
    """The worst page's cosine with Flask's (or the first way's) vectors, by way. Raises SystemExit."""
    (sample,) = documents(texts, count=1, pages=_CHECKED_PAGES, repeats=0.0, seed="checked")
    vectors = {name: _vectors(way, sample) for name, way in ways.items()}
    reference = vectors.get(FLASK, next(iter(vectors.values())))
    agreement = {name: float(np.einsum("ij,ij->i", each, reference).min()) for name, each in vectors.items()}
    for name, cosine in agreement.items():
        if not cosine >= _MINIMUM_COSINE:
            raise SystemExit(f"{name} answers something else than PyTorch: cosine {cosine:.4f}, below {_MINIMUM_COSINE}")
    return agreement


def _vectors(way: Way, document: Document) -> Vector:
    return np.concatenate([way.vectors(body) for body in closed_loop.collect("http", way.address, way.asks(document))])


if __name__ == "__main__":
    main()
