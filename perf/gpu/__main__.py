"""Embedding texts on a GPU: Tidegate beside its Triton alone, itself on the CPU, and what people first write on that GPU.

    python -m perf.gpu [--rounds 5] [--seconds 1] [--callers 1 32 128] [--batch 64] [--batch-callers 1 4 16]

Short texts one by one, and pages in requests of `--batch`; no text occurs twice. All servers run to the end, idle while another is
measured, and share the machine's CPUs with the load generator. Writes perf/results/gpu.json and .md.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial

from perf.embedding.__main__ import require_agreement
from perf.embedding.peers import MODEL, Peer
from perf.gpu.report import BATCH, FLASK, ON_CPU, OURS, STRAIGHT, TEXT, Case, Report, Run
from perf.load import closed_loop
from perf.load.closed_loop import Ask
from perf.load.inference_requests import naive_json, naive_post, texts_post, triton_binary, triton_grpc
from perf.load.texts import EQUAL_TOKENS, PAGES, PARAGRAPHS, QUERIES, Text, Texts
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.servers.processes import cpu_s, free_port, running
from perf.servers.serving import Tidegate, serving_models, triton_addresses
from perf.servers.triton_statistics import METRICS_PERIOD_S, served_variants
from perf.servers.variants import ENCODER
from python_backends.runtime.machine import gpu_name

_ON_GPU = {"TIDEGATE_MODEL_CONFIG_NAME": "gpu"}
"""A start with it fails where there is no variant for the GPU; without it the CPU would be chosen, and measured."""
_NO_SUCH_CONFIGURATION = {"TIDEGATE_MODEL_CONFIG_NAME": "cpu"}
"""Models are served by their plain config.pbtxt then, on the CPU."""
_START_TIMEOUT_S = 180.0
_WARM_UP_CALLERS = 16
_TEXTS_PER_S = 8000
"""Requests of one text that are made before a run begins; what is wanted beyond is made meanwhile. Those of pages are all made before."""
_BATCHES_PER_S = {FLASK: 100, ON_CPU: 40}
_MOST_BATCHES_PER_S = 500


def main() -> None:
    parser = harness.parser(__doc__, rounds=5, seconds=1.0)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 32, 128], help="who send one short text at a time")
    parser.add_argument("--batch", type=int, default=64, help="pages in a request")
    parser.add_argument("--batch-callers", type=int, nargs="+", default=[1, 4, 16], help="who send so many")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    gpu = gpu_name()
    if gpu is None:
        raise SystemExit("perf.gpu needs an NVIDIA GPU and a CUDA build of PyTorch")
    texts = Texts(QUERIES, PARAGRAPHS)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(_flask()), *stack.enter_context(_tidegate()), stack.enter_context(_on_cpu())]
        agreement = require_agreement(peers, texts)
        loads = _Loads(texts, arguments)
        loads.warm_up(peers)
        runs = interleave(loads.ways(peers), arguments.rounds)
        time.sleep(METRICS_PERIOD_S)
        (metrics,) = {peer.triton["metrics"] for peer in peers if peer.triton}
        served = served_variants(metrics, ENCODER.name)
    return Result(runs, texts.describe(), {"gpu": gpu, "served_variants": served, "agreement_with_pytorch": agreement})


@contextlib.contextmanager
def _flask() -> Iterator[Peer]:
    port = free_port()
    command = [sys.executable, "-m", "perf.peers.naive.flask_torch", "--port", str(port), "--device", "cuda"]
    with running(command, port, start_timeout_s=_START_TIMEOUT_S) as pid:
        yield Peer(FLASK, naive_json(), f"127.0.0.1:{port}", pid)


@contextlib.contextmanager
def _tidegate() -> Iterator[list[Peer]]:
    with serving_models([], [MODEL], variables=_ON_GPU) as started:
        triton = triton_addresses(started)
        binary, grpc = triton_binary(MODEL), triton_grpc(MODEL)
        yield [
            Peer(STRAIGHT, binary, triton["http"], started.pid, triton),
            _gateway(OURS, started),
            Peer("tidegate-grpc", grpc, started.addresses["grpc"], started.pid, gateway=started),
        ]


@contextlib.contextmanager
def _on_cpu() -> Iterator[Peer]:
    with serving_models([], [MODEL], variables=_NO_SUCH_CONFIGURATION) as started:
        yield _gateway(ON_CPU, started)


def _gateway(name: str, started: Tidegate) -> Peer:
    return Peer(name, triton_binary(MODEL), started.addresses["http"], started.pid, gateway=started)


class _Loads:
    """Runs of the scenario, each with texts of its own."""

    def __init__(self, texts: Texts, arguments: argparse.Namespace) -> None:
        self._texts, self._arguments = texts, arguments
        self._seeds = itertools.count()

    def warm_up(self, peers: Sequence[Peer]) -> None:
        for peer in peers:
            self._run(peer, Case(TEXT, _WARM_UP_CALLERS, peer.name))

    def ways(self, peers: Sequence[Peer]) -> dict[Case, Callable[[], Run]]:
        """A case's peers one after the other: what is compared is measured within seconds."""
        ways: dict[Case, Callable[[], Run]] = {}
        for load, numbers in ((TEXT, self._arguments.callers), (BATCH, self._arguments.batch_callers)):
            for callers, peer in itertools.product(numbers, peers):
                if load == TEXT or peer.protocol == "http":
                    ways[case] = partial(self._run, peer, case := Case(load, callers, peer.name))
        return ways

    def _run(self, peer: Peer, case: Case) -> Run:
        harness.say(case.describe())
        asks, tokens = self._asks(peer, case.load)
        before_s = cpu_s(peer.pid)
        loaded = closed_loop.run(peer.protocol, peer.address, asks, callers=case.callers, duration_s=self._arguments.seconds)
        return Run(
            **asdict(loaded.at_server(cpu_s(peer.pid) - before_s)),
            tokens_per_s=loaded.requests_per_s * tokens,
        )

    def _asks(self, peer: Peer, load: str) -> tuple[Iterator[Ask], float]:
        """Requests without end, some prepared, and the tokens of a mean one."""
        mix = "equal" if load == TEXT else PAGES
        texts = self._texts.deck(mix, seed=next(self._seeds))
        seconds = self._arguments.seconds
        if load == TEXT:
            made = (Ask(peer.form.encode(text.text), TEXT) for text in texts)
            return _prepared(made, int(_TEXTS_PER_S * seconds)), float(EQUAL_TOKENS)
        count = max(1, int(_BATCHES_PER_S.get(peer.name, _MOST_BATCHES_PER_S) * seconds))
        pages = list(itertools.islice(texts, count * self._arguments.batch))
        batches = (self._batch(peer, pages[at : at + self._arguments.batch]) for at in range(0, len(pages), self._arguments.batch))
        return iter(list(batches)), sum(page.tokens for page in pages) / len(pages) * self._arguments.batch

    def _batch(self, peer: Peer, pages: Sequence[Text]) -> Ask:
        texts = [page.text for page in pages]
        return Ask(naive_post(texts) if peer.name == FLASK else texts_post(MODEL, texts), BATCH)


def _prepared(made: Iterator[Ask], count: int) -> Iterator[Ask]:
    return itertools.chain(list(itertools.islice(made, count)), made)


if __name__ == "__main__":
    main()
