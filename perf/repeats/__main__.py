"""What the response cache does for callers whose texts repeat: hits, latency and throughput, with it and without.

    python -m perf.repeats [--queries FILE] [--requests 5000] [--callers 8] [--rounds 5]

FILE is tab-separated with columns `Query` and `PopularityScore` (the Bing search dataset for Coronavirus intent has them, gzip or not):
texts are drawn in proportion to their scores. Without it documents of the project's own texts are asked for, the k-th most popular
1/k as often as the first. `as shipped` has the gateway's own `--cache-bytes`; the others are set to nothing, or to room for a tenth of the
distinct answers. Callers, gateway and model share this machine's cores. Writes perf/results/repeats.json and .md.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

from perf.load.closed_loop import Ask, run
from perf.load.inference_requests import triton_binary
from perf.load.texts import PARAGRAPHS, QUERIES, Texts
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.repeats.report import CACHES, NO_CACHE, ROOM_FOR_A_TENTH, SHIPPED, Case, Report, Run
from perf.servers.cache_answers import CacheAnswers
from perf.servers.serving import tidegate

MODEL = "text_embedding"
_DOCUMENTS = 20_000
_ENTRY_BYTES = 2_200
"""Size of a cached embedding, about, with what belongs to it."""


def main() -> None:
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--queries", type=Path, help="tab-separated, with columns `Query` and `PopularityScore`")
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--caches", nargs="+", choices=CACHES, default=list(CACHES))
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    texts = drawn(arguments.requests, arguments.queries)
    distinct = len(set(texts))
    flags = {NO_CACHE: ["--cache-bytes", "0"], ROOM_FOR_A_TENTH: ["--cache-bytes", str(distinct // 10 * _ENTRY_BYTES)], SHIPPED: []}
    asked = asks(texts)
    ways = {Case(cache): partial(measure, asked, arguments.callers, flags[cache]) for cache in arguments.caches}
    source = (
        f"queries drawn by popularity from {arguments.queries.name}" if arguments.queries else "texts of this project, drawn by 1 / rank"
    )
    return Result(interleave(ways, arguments.rounds), [source], {"distinct": distinct})


def drawn(requests: int, queries: Path | None = None) -> list[str]:
    """What is asked for, in order; the same each time."""
    documents, weights = _by_popularity(queries) if queries else _of_our_own()
    return Random(20261121).choices(documents, weights=weights, k=requests)


def asks(texts: Sequence[str]) -> list[Ask]:
    form = triton_binary(MODEL)
    return [Ask(form.encode(text), "text") for text in texts]


def _by_popularity(path: Path) -> tuple[list[str], list[float]]:
    data = path.read_bytes()
    rows = csv.DictReader(io.StringIO((gzip.decompress(data) if path.suffix == ".gz" else data).decode()), delimiter="\t")
    scores: dict[str, float] = {}
    for row in rows:
        scores[row["Query"]] = scores.get(row["Query"], 0.0) + float(row["PopularityScore"])
    return list(scores), list(scores.values())


def _of_our_own() -> tuple[list[str], list[float]]:
    deck = Texts(QUERIES, PARAGRAPHS).deck("95/5", seed=1)
    documents = list(dict.fromkeys(text.text for text in itertools.islice(deck, _DOCUMENTS)))
    return documents, [1 / rank for rank in range(1, len(documents) + 1)]


def measure(asks: Sequence[Ask], callers: int, flags: Sequence[str]) -> Run:
    """Measure a gateway of its own with these flags, whose cache is empty."""
    with tidegate(["--load", MODEL, *flags]) as started:
        loaded = run("http", started.addresses["http"], iter(asks), callers=callers, duration_s=3600.0)
        return Run(
            requests_per_s=loaded.requests_per_s,
            p50_ms=loaded.percentile_ms(50),
            p99_ms=loaded.percentile_ms(99),
            hit_ratio=CacheAnswers.at(started.metrics).hit_ratio,
            errors=loaded.errors,
        )


if __name__ == "__main__":
    main()
