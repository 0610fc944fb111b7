"""Should the encoder tokenize, or a model of its own in an ensemble of two steps? Measures both on Triton itself, over gRPC.

Two steps pay for scheduling and for the tokens' way through two stubs. One step pays by tokenizing while the encoder waits. Both use the
same code and files, and one loaded encoder, so the difference is that and nothing else. Rounds alternate between the two, lest drift of a
noisy machine be taken for a difference; every figure is the median over the rounds.

    python -m perf.one_step [--rounds 7] [--seconds 2]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException

from perf.serving import PROJECT, serving

SENTENCES = Path(__file__).resolve().parents[1] / "model_repository" / "text_encoder" / "texts" / "sentences.txt"

# "short" is one query of 11 tokens over and over: the hop itself. "mixed" is 3 to 256 tokens in random order: what batching makes of it.
SHORT = ["How do I reset the password of my bank?"]

# Compared one text at a time before anything is measured: fast but different would be no peer.
MINIMUM_COSINE = 0.9999


@dataclass(frozen=True, slots=True)
class Round:
    """One model under one load for a few seconds."""

    p50_ms: float
    p99_ms: float
    requests_per_s: float


def main() -> int:
    """Measure, print and write; returns the exit status."""
    options = _parser().parse_args()
    if options.url:
        results = asyncio.run(_measure_all(options))
    else:
        with serving([PROJECT / name for name in ("model_repository", "ensembles", "perf/peers")], options.models) as addresses:
            options.url = addresses["direct", "grpc"]
            results = asyncio.run(_measure_all(options))
    _print_table(results)
    document = {
        "scenario": "one_step",
        "command": " ".join(["python -m perf.one_step", *sys.argv[1:]]),
        "hardware": {"machine": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version()},
        "rounds": options.rounds,
        "seconds_per_round": options.seconds,
        "medians": results,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=2) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="", help="gRPC address of a Triton that has the models; without it one is started")
    parser.add_argument("--models", nargs="+", default=["text_embedding", "text_embedding_steps"])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one round of one model")
    parser.add_argument("--output", type=Path, default=Path("perf/results/one_step.json"))
    return parser


async def _measure_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    workloads = {"short": SHORT, "mixed": SENTENCES.read_text().splitlines()}
    async with grpcclient.InferenceServerClient(options.url) as client:
        await _require_ready(client, options)
        await _require_same_answers(client, options.models, workloads["mixed"])
        return [
            {"workload": name, "concurrency": concurrency, "models": await _measure(client, options, _inputs(texts), concurrency)}
            for name, texts in workloads.items()
            for concurrency in options.concurrency
        ]


async def _measure(
    client: grpcclient.InferenceServerClient, options: argparse.Namespace, inputs: Sequence[grpcclient.InferInput], concurrency: int
) -> dict[str, Mapping[str, float]]:
    rounds: dict[str, list[Round]] = {model: [] for model in options.models}
    for number in range(options.rounds):
        # Every other round the other way about, so that neither always comes first.
        for model in options.models[:: 1 if number % 2 else -1]:
            rounds[model].append(await _run_round(client, model, inputs, concurrency, options.seconds, seed=number))
    return {model: _medians(measured) for model, measured in rounds.items()}


async def _run_round(
    client: grpcclient.InferenceServerClient,
    model: str,
    inputs: Sequence[grpcclient.InferInput],
    concurrency: int,
    seconds: float,
    *,
    seed: int,
) -> Round:
    latencies_s: list[float] = []
    started_s = time.perf_counter()

    async def caller(order: random.Random) -> None:
        while (sent_s := time.perf_counter()) - started_s < seconds:
            await client.infer(model, [order.choice(inputs)])
            latencies_s.append(time.perf_counter() - sent_s)

    async with asyncio.TaskGroup() as callers:
        for index in range(concurrency):
            callers.create_task(caller(random.Random(seed * 1000 + index)), name=f"caller {index}")
    elapsed_s = time.perf_counter() - started_s
    p50_s, p99_s = np.percentile(latencies_s, [50, 99])
    return Round(float(p50_s) * 1e3, float(p99_s) * 1e3, len(latencies_s) / elapsed_s)


async def _require_ready(client: grpcclient.InferenceServerClient, options: argparse.Namespace) -> None:
    try:
        missing = [model for model in options.models if not await client.is_model_ready(model)]
    except InferenceServerException as exc:
        raise SystemExit(f"no Triton answers at {options.url} ({exc.message()})") from exc
    if missing:
        raise SystemExit(f"the Triton at {options.url} has not loaded {', '.join(missing)}")


async def _require_same_answers(client: grpcclient.InferenceServerClient, models: Sequence[str], texts: Sequence[str]) -> None:
    for text, tensor in zip(texts, _inputs(texts), strict=True):
        first, *others = [(await client.infer(model, [tensor])).as_numpy("EMBEDDING")[0] for model in models]
        for model, other in zip(models[1:], others, strict=True):
            if first @ other < MINIMUM_COSINE:
                raise SystemExit(f"{models[0]} and {model} disagree on {text!r}: cosine {first @ other:.6f}")


def _inputs(texts: Sequence[str]) -> list[grpcclient.InferInput]:
    tensors = []
    for text in texts:
        tensor = grpcclient.InferInput("TEXT", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[text.encode()]], dtype=np.object_))
        tensors.append(tensor)
    return tensors


def _medians(rounds: Sequence[Round]) -> Mapping[str, float]:
    return {name: round(median(asdict(measured)[name] for measured in rounds), 3) for name in asdict(rounds[0])}


def _print_table(results: Sequence[Mapping[str, Any]]) -> None:
    print(f"{'workload':<10}{'concurrent':>11}  {'model':<20}{'p50 ms':>9}{'p99 ms':>9}{'requests/s':>12}")
    for result in results:
        for model, measured in result["models"].items():
            print(
                f"{result['workload']:<10}{result['concurrency']:>11}  {model:<20}"
                f"{measured['p50_ms']:>9.2f}{measured['p99_ms']:>9.2f}{measured['requests_per_s']:>12.0f}"
            )


if __name__ == "__main__":
    sys.exit(main())
