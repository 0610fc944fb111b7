"""Embedding texts: Tidegate beside what people first write, Triton alone and bare ONNX Runtime, in turns within one run.

    python -m perf.embedding [--rounds 5] [--seconds 1] [--callers 1 32] [--variant int8] [--peers flask tidegate-http ...]
                             [--queries FILE] [--paragraphs FILE]

Short texts and long ones in the mixes of `perf.load.texts`; no text occurs twice, but where 30 % of a run's requests repeat an earlier one.
Tidegate is started as it is shipped, with its response cache; `--variant` serves another one than its encoder chooses. Load generator,
peers and Triton share this machine's cores. Writes perf/results/embedding.json, .md and .png.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from perf.embedding import plot as embedding_plot
from perf.embedding import stages as embedding_stages
from perf.embedding.peers import FP32_PEERS, PEERS, SHIPPED, Peer, start_peers
from perf.embedding.report import BARE, Case, Report, Run
from perf.load import closed_loop
from perf.load.closed_loop import Ask
from perf.load.inference_requests import Vector
from perf.load.texts import LONG, PARAGRAPHS, QUERIES, SHORT, Text, Texts
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.peers.bare_onnxruntime import BareOnnxRuntime
from perf.servers.processes import cpu_s
from perf.servers.triton_statistics import METRICS_PERIOD_S, served_variants
from perf.servers.variants import ENCODER, bare_file

WORKLOADS = (("95/5", 0.0), ("95/5", 0.3), ("80/20", 0.0), ("equal", 0.0))
"""Mix and share of repeats."""

_SLOW = ("fastapi-httpx-512",)
"""Measured on the 95/5 mix only, where its target is: every text costs it the same anyway."""

_CHECKED_TEXTS = 20
_MINIMUM_COSINE = {"fp32": 0.9999, "quantised": 0.97}
"""Least similarity of the worst text to PyTorch's; a variant's own gate is stricter, on more texts."""

_PREPARED_PER_S = {True: 400, False: 4000}
"""Requests made before a run begins, by whether the peer is one of the slow ones; what is wanted beyond is made meanwhile."""
_WARM_UP_CALLERS = 8
_BARE_TEXTS_PER_S, _LEAST_BARE_TEXTS = 160, 40


def main() -> None:
    parser = harness.parser(__doc__, rounds=5, seconds=1.0)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--variant", default=SHIPPED, help="of text_encoder, instead of the one that it takes by itself")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--queries", type=Path, default=QUERIES, help="short texts, one a line (or a tsv's last column), gzip or not")
    parser.add_argument("--paragraphs", type=Path, default=PARAGRAPHS, help="long texts")
    harness.carry_out(Report, parser.parse_args(), _measure, embedding_plot.draw)


def _measure(arguments: argparse.Namespace) -> Result:
    texts = Texts(arguments.queries, arguments.paragraphs)
    with contextlib.ExitStack() as stack:
        peers = start_peers(stack, arguments)
        agreement = require_agreement(peers, texts)
        scenario = _Scenario(texts, arguments)
        scenario.warm_up(peers)
        served = _served(peers)
        runs = interleave(scenario.ways(peers, bare_file(served)), arguments.rounds)
        stages = embedding_stages.measure(peers, scenario.asks, arguments)
    return Result(runs, texts.describe(), {"served_variants": served, "agreement_with_pytorch": agreement, "stages_ms": stages})


def _served(peers: list[Peer]) -> list[str]:
    """The encoder's variants, once it has been asked."""
    time.sleep(METRICS_PERIOD_S)
    pages = [peer.triton["metrics"] for peer in peers if peer.triton]
    return served_variants(pages[0], ENCODER.name) if pages else []


class _Scenario:
    """Runs of the scenario, each with texts of its own."""

    def __init__(self, texts: Texts, arguments: argparse.Namespace) -> None:
        self._texts, self._callers, self._seconds = texts, arguments.callers, arguments.seconds
        self._seeds = itertools.count()
        self._best_batch: dict[str, int] = {}

    def warm_up(self, peers: list[Peer]) -> None:
        for peer in peers:
            closed_loop.run(peer.protocol, peer.address, self.asks(peer, "95/5"), callers=_WARM_UP_CALLERS, duration_s=self._seconds)

    def ways(self, peers: list[Peer], bare_file: Path) -> dict[Case, Callable[[], Run]]:
        """A case's peers one after the other: what is compared is measured within seconds."""
        bare = BareOnnxRuntime(bare_file)
        ways: dict[Case, Callable[[], Run]] = {}
        for mix, repeats in WORKLOADS:
            if not repeats:
                ways[Case(mix, repeats, 0, BARE)] = partial(self._run_bare, bare, mix)
            for callers, peer in itertools.product(self._callers, peers):
                if peer.name not in _SLOW or mix == "95/5":
                    case = Case(mix, repeats, callers, peer.name)
                    ways[case] = partial(self._run, peer, case)
        return ways

    def asks(self, peer: Peer, mix: str, repeats: float = 0.0) -> Iterator[Ask]:
        """Requests without end, the first of them prepared."""
        made = (Ask(peer.form.encode(text.text), text.kind) for text in self._deck(mix, repeats))
        count = int(_PREPARED_PER_S[peer.name in FP32_PEERS] * self._seconds)
        return itertools.chain(list(itertools.islice(made, count)), made)

    def _deck(self, mix: str, repeats: float = 0.0) -> Iterator[Text]:
        return self._texts.deck(mix, repeats=repeats, seed=next(self._seeds))

    def _run(self, peer: Peer, case: Case) -> Run:
        harness.say(case.describe())
        asks, before_s, found = self.asks(peer, case.mix, case.repeats), cpu_s(peer.pid), peer.cache_answers()
        loaded = closed_loop.run(peer.protocol, peer.address, asks, callers=case.callers, duration_s=self._seconds)
        return Run(
            **asdict(loaded.at_server(cpu_s(peer.pid) - before_s)),
            short_p99_ms=loaded.percentile_ms(99, SHORT),
            long_p99_ms=loaded.percentile_ms(99, LONG),
            hit_ratio=(peer.cache_answers() - found).hit_ratio,
        )

    def _run_bare(self, bare: BareOnnxRuntime, mix: str) -> Run:
        harness.say(f"bare ONNX Runtime, {mix}")
        count = max(_LEAST_BARE_TEXTS, round(_BARE_TEXTS_PER_S * self._seconds))
        sample = list(itertools.islice(self._deck(mix), count))
        token_ids = self._texts.token_ids([text.text for text in sample])
        alone_ms = bare.alone_ms(token_ids[: count // 8])
        best = self._best_batch.get(mix) or self._best_batch.setdefault(mix, bare.best_batch(token_ids[: count // 2]))
        return Run.of_bare(bare.throughput(token_ids, best), alone_ms, best)


def require_agreement(peers: list[Peer], texts: Texts) -> dict[str, dict[str, float]]:
    """The cosines between each peer's answers and PyTorch's: fast but different would be no peer. Raises SystemExit."""
    sample = [text.text for text in itertools.islice(texts.deck("80/20", seed=-1), _CHECKED_TEXTS)]
    answers = {peer.name: _vectors(peer, sample) for peer in peers}
    reference = answers.get("flask", answers[peers[0].name])
    agreement: dict[str, dict[str, float]] = {}
    for name, vectors in answers.items():
        cosines = np.einsum("ij,ij->i", vectors, reference)
        agreement[name] = {"cosine_min": float(cosines.min()), "cosine_mean": float(cosines.mean())}
        needed = _MINIMUM_COSINE["fp32" if name in FP32_PEERS else "quantised"]
        if not cosines.min() >= needed:
            raise SystemExit(f"{name} answers something else than PyTorch: cosine {cosines.min():.4f}, below {needed}")
    return agreement


def _vectors(peer: Peer, texts: list[str]) -> Vector:
    asks = [Ask(peer.form.encode(text), SHORT) for text in texts]
    return np.stack([peer.form.vector(body) for body in closed_loop.collect(peer.protocol, peer.address, asks)])


if __name__ == "__main__":
    main()
