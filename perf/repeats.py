"""What the response cache does for callers whose texts repeat: hits, latency and throughput, with it and without.

    python -m perf.repeats [--trace FILE] [--requests 10000] [--callers 8] [--rounds 5]

FILE is tab-separated with columns `Query` and `PopularityScore` (the Bing search dataset for Coronavirus intent has them, gzip or not):
texts are drawn in proportion to their scores. Without it 20,000 documents of the project's own texts are asked for, the k-th most popular
1/k as often as the first. Level one has room for a tenth of the distinct answers, or for all of them. Callers, gateway and model share
this machine's cores. Writes perf/results/repeats.json.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import itertools
import json
import re
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from perf.closed_loop import Ask, run
from perf.gateway_report import commit, machine
from perf.inference_requests import triton_binary
from perf.interleaved import interleave, median_of
from perf.processes import PROJECT, exit_on_sigterm
from perf.serving import Tidegate, tidegate
from perf.texts import PARAGRAPHS, QUERIES, Texts

MODEL = "text_embedding"
_DOCUMENTS = 20_000
_ENTRY_BYTES = 2_200
"""Of a kept embedding, about, with what belongs to it."""
_TARGET = 0.4


@dataclass(frozen=True, slots=True)
class Run:
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    hit_ratio: float
    errors: int


def main() -> None:
    arguments = _arguments()
    exit_on_sigterm()
    texts = drawn(arguments)
    distinct = len(set(texts))
    sizes = {"none": 0, "room for a tenth": distinct // 10 * _ENTRY_BYTES, "room for all": 2 * distinct * _ENTRY_BYTES}
    asks = [Ask(triton_binary(MODEL).encode(text), "text") for text in texts]
    ways: dict[str, Callable[[], Run]] = {
        name: partial(measure, asks, arguments.callers, "--cache-bytes", str(size)) for name, size in sizes.items()
    }
    results = interleave(ways, arguments.rounds, warm_ups=0)
    medians = {name: median_of(runs) for name, runs in results.items()}
    ways_told = {name: {"median": asdict(medians[name]), "rounds": list(map(asdict, runs))} for name, runs in results.items()}
    document = {"scenario": "repeats", "commit": commit(), "machine": machine(), **vars(arguments), "distinct": distinct, "ways": ways_told}
    (PROJECT / "perf" / "results" / "repeats.json").write_text(json.dumps(document, indent=1, default=str) + "\n")
    _print(medians, len(texts), distinct)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def drawn(arguments: argparse.Namespace) -> list[str]:
    """What is asked for, in order; the same each time."""
    documents, weights = _of_trace(arguments.trace) if arguments.trace else _of_our_own()
    return Random(20261121).choices(documents, weights=weights, k=arguments.requests)


def _of_trace(path: Path) -> tuple[list[str], list[float]]:
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


def measure(asks: list[Ask], callers: int, *flags: str) -> Run:
    """With a gateway of its own with these flags, whose first level is empty."""
    with contextlib.ExitStack() as held:
        started = held.enter_context(tidegate(["--load", MODEL, *flags]))
        loaded = run("http", started.addresses["http"], iter(asks), callers=callers, duration_s=3600.0)
        hits, answers = _cache_answers(started)
        return Run(
            loaded.requests / loaded.seconds,
            loaded.percentile_ms(50),
            loaded.percentile_ms(99),
            hits / answers if answers else 0.0,
            loaded.errors,
        )


def _cache_answers(started: Tidegate) -> tuple[float, float]:
    """Hits (what was joined is one), and all."""
    page = urllib.request.urlopen(started.metrics, timeout=10).read().decode()
    counts = {status: float(count) for status, count in re.findall(r'^tidegate_cache_answers_total\{.*status="(\w+)"\} (\S+)$', page, re.M)}
    return counts.get("hit", 0.0) + counts.get("joined", 0.0), sum(counts.values())


def _print(medians: dict[str, Run], requests: int, distinct: int) -> None:
    table = Table("cache", "requests/s", "p50 ms", "p99 ms", "hits", "", box=None)
    for name, each in medians.items():
        verdict = "" if name == "none" else "[green]met" if each.hit_ratio > _TARGET else "[red]not met"
        figures = (f"{each.requests_per_s:.0f}", f"{each.p50_ms:.2f}", f"{each.p99_ms:.2f}", f"{each.hit_ratio:.1%}")
        table.add_row(name, *figures, verdict and f"{verdict} (> {_TARGET:.0%})")
    console = Console(width=120)
    console.print(table)
    console.print(f"{requests} requests for {distinct} texts; an ideal cache without a bound has {1 - distinct / requests:.1%}.")


if __name__ == "__main__":
    main()
