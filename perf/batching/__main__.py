"""Length-aware batching beside other ways of batching, through the real Triton: one encoder, fed with token ids of mixed lengths.

    python -m perf.batching [--rounds 5] [--seconds 1] [--callers 64] [--instances 1] [--variants fp32 int8] [--mixes 95/5 equal]
                            [--ways length-aware one-by-one ...] [--queries FILE] [--paragraphs FILE]

Straight at Triton over HTTP, with callers that ask again when they were answered. Load generator and Triton share this machine's cores.
Writes perf/results/batching.json, .md and .png.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from perf.batching import plot as batching_plot
from perf.batching.models import WAYS, place_way
from perf.batching.report import TOGETHER, Case, Report, Run
from perf.load import closed_loop
from perf.load.closed_loop import Ask
from perf.load.inference_requests import binary_vector, tokens_post
from perf.load.texts import LONG, MIXES, PARAGRAPHS, QUERIES, SHORT, Texts
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.servers.serving import serving_models, triton_addresses
from perf.servers.triton_statistics import METRICS_PERIOD_S, metrics

_MIXES = {**{mix: (mix, 1) for mix in MIXES}, TOGETHER: ("95/5", 16)}
"""The mix, and how many texts a request has."""
_TEXTS = 2000
"""Texts of a mix, asked for over and over: nothing here remembers an answer."""
_CHECKED = 32
"""Texts of each mix."""
_MINIMUM_COSINE = 0.97
"""Least similarity of the worst text to fp32's; the gate wants 0.99 of 99 in 100."""


def main() -> None:
    parser = harness.parser(__doc__, rounds=5, seconds=1.0)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--instances", type=int, default=1, help="of the others' models; they share the threads")
    parser.add_argument("--variants", nargs="+", default=["fp32", "int8"], help="of text_encoder")
    parser.add_argument("--mixes", nargs="+", choices=_MIXES, default=["95/5", "equal", TOGETHER])
    quick = [way for way in WAYS if way != "padded-512"]
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=quick, help="all but padded-512, which takes longest")
    parser.add_argument("--queries", type=Path, default=QUERIES, help="short texts, one a line (or a tsv's last column), gzip or not")
    parser.add_argument("--paragraphs", type=Path, default=PARAGRAPHS, help="long texts")
    harness.carry_out(Report, parser.parse_args(), _measure, batching_plot.draw)


def _measure(arguments: argparse.Namespace) -> Result:
    texts = Texts(arguments.queries, arguments.paragraphs)
    runs: dict[Case, list[Run]] = {}
    for variant in arguments.variants:
        runs |= _measure_variant(variant, _token_ids(texts, arguments.mixes), arguments)
    return Result(runs, texts.describe())


Sequences = list[tuple[list[list[int]], str]]
"""Token ids of each request's texts, and its kind: long if one of them is."""


def _token_ids(texts: Texts, mixes: list[str]) -> dict[str, Sequences]:
    """Return the token ids of texts, by mix."""
    found = dict[str, Sequences]()
    for mix in mixes:
        name, together = _MIXES[mix]
        deck = list(itertools.islice(texts.deck(name, seed=0), _TEXTS))
        ids, kinds = texts.token_ids([text.text for text in deck]), [text.kind for text in deck]
        firsts = range(0, len(deck) - together + 1, together)
        found[mix] = [(ids[first : first + together], max(kinds[first : first + together], key=LONG.__eq__)) for first in firsts]
    return found


def _measure_variant(variant: str, sequences: dict[str, Sequences], arguments: argparse.Namespace) -> dict[Case, list[Run]]:
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as folder:
        models = {way: place_way(Path(folder), way, variant, instances=arguments.instances) for way in arguments.ways}
        with serving_models([Path(folder)], list(models.values())) as started:
            triton = _Triton(triton_addresses(started), arguments)
            for mix in sequences.values():
                triton.require_agreement(list(models.values()), mix[: _CHECKED // len(mix[0][0])])
            ways = {
                Case(variant, mix, way): partial(triton.run, model, sequences[mix], seconds=arguments.seconds)
                for mix in sequences
                for way, model in models.items()
            }
            return interleave(ways, arguments.rounds)


class _Triton:
    """Load generator for one Triton: asks one model at a time, and reads what Triton has counted of it."""

    def __init__(self, addresses: dict[str, str], arguments: argparse.Namespace) -> None:
        self._addresses, self._callers = addresses, arguments.callers
        self._counted: dict[str, dict[str, float]] = {}

    def run(self, model: str, sequences: Sequences, *, seconds: float) -> Run:
        harness.say(model)
        together = len(sequences[0][0])
        asks = itertools.cycle([Ask(tokens_post(model, *texts), kind) for texts, kind in sequences])
        callers = max(1, self._callers // together)
        loaded = closed_loop.run("http", self._addresses["http"], asks, callers=callers, duration_s=seconds)
        counted = self._counted_since(model)
        return Run(
            sequences_per_s=loaded.requests_per_s * together,
            p50_ms=loaded.percentile_ms(50),
            p99_ms=loaded.percentile_ms(99),
            short_p99_ms=loaded.percentile_ms(99, SHORT),
            long_p99_ms=loaded.percentile_ms(99, LONG),
            padding=counted["tidegate_batching_padded_tokens_total"] / counted["tidegate_batching_useful_tokens_total"],
            rows_per_batch=counted["tidegate_batching_rows_total"] / counted["tidegate_batching_batches_total"],
            client_share=loaded.client_share,
            errors=loaded.errors,
        )

    def require_agreement(self, models: list[str], sequences: Sequences) -> None:
        """Raises SystemExit when two ways answer differently."""
        answers = {model: self._embed(model, sequences) for model in models}
        reference = answers[models[0]]
        for model, vectors in answers.items():
            cosines = np.einsum("ij,ij->i", vectors, reference)
            if not cosines.min() >= _MINIMUM_COSINE:
                raise SystemExit(f"{model} answers something else than {models[0]}: cosine {cosines.min():.4f}")
            self._counted_since(model)

    def _embed(self, model: str, sequences: Sequences) -> np.ndarray:
        asks = [Ask(tokens_post(model, *texts), kind) for texts, kind in sequences]
        bodies = closed_loop.collect("http", self._addresses["http"], asks)
        return np.concatenate([binary_vector(body).reshape(len(texts), -1) for body, (texts, _) in zip(bodies, sequences, strict=True)])

    def _counted_since(self, model: str) -> dict[str, float]:
        """What was counted of the model since it was last asked; nobody else asks it."""
        time.sleep(METRICS_PERIOD_S)
        now, before = metrics(self._addresses["metrics"], model), self._counted.get(model, {})
        self._counted[model] = now
        return {name: value - before.get(name, 0.0) for name, value in now.items()}


if __name__ == "__main__":
    main()
