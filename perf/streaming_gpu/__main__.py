"""What a bound on a language model's weights on its GPU costs: a Llama of 3.3 GB with all of its weights there, and with 50, 25 and 16 %,
the least that works; beside transformers' own way to leave weights in the host's memory (`device_map`, by accelerate, where that is
installed), which has as many layers on the GPU as ours and its two buffers together.

    python -m perf.streaming_gpu [--rounds 3] [--sequences 1 16] [--tokens 16] [--prompt 256] [--layers 24] [--percents 100 50 25 16]
        [--ways weight_memory_mb accelerate]

All compute the same steps in one process, without a gateway: only the weights' way differs. The model's weights are random. Writes
perf/results/streaming-gpu.json and .md.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers

from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.streaming_gpu.report import ACCELERATE, OURS, PERCENTS, SEQUENCES, WHOLE, Case, Report, Run
from python_backends.runtime.engines.causal_lm import ATTENTION, CausalLM, KeyValues, Piece, decoder_layers, load_causal_lm
from python_backends.runtime.streaming.layer_plan import BUFFERS, MIB, plan_layers
from python_backends.runtime.streaming.streamed_layers import CudaDevice

_GPU = torch.device("cuda", 0)
_COPIES = 20
_WARM_UP_TOKENS = 2


def main() -> None:
    parser = harness.parser(__doc__, rounds=3)
    parser.add_argument("--sequences", nargs="+", type=int, default=list(SEQUENCES), help="that share each step")
    parser.add_argument("--percents", nargs="+", type=int, default=list(PERCENTS), help="of the weights on the GPU; 100 is always one")
    parser.add_argument(
        "--ways", nargs="+", choices=[OURS, ACCELERATE], default=[OURS, ACCELERATE], help="accelerate where it is installed"
    )
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--layers", type=int, default=24)
    harness.carry_out(Report, parser.parse_args(), _measure)


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: CausalLM
    held_mib: float
    copied_mib: float


def _measure(arguments: argparse.Namespace) -> Result:
    if not torch.cuda.is_available():
        raise SystemExit("perf.streaming_gpu needs an NVIDIA GPU and a CUDA build of PyTorch")
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as name:
        folder = _saved(Path(name), arguments.layers)
        loaded = {(OURS, WHOLE): _loaded(partial(load_causal_lm, folder, kind="GPU", device_id=0), 0.0)}
        layer_bytes, weight_bytes = _sizes(loaded[OURS, WHOLE].model)
        for percent in arguments.percents:
            if percent < WHOLE:
                budget_bytes = weight_bytes * percent // 100
                plan = plan_layers([layer_bytes] * arguments.layers, weight_bytes - arguments.layers * layer_bytes, budget_bytes)
                ours = partial(load_causal_lm, folder, kind="GPU", device_id=0, weight_memory_bytes=budget_bytes)
                loaded[OURS, percent] = _loaded(ours, len(plan.streamed) * layer_bytes / MIB)
                if ACCELERATE in arguments.ways and find_spec("accelerate") is not None:
                    theirs = partial(_dispatched, folder, arguments.layers - len(plan.streamed) + BUFFERS, arguments.layers)
                    loaded[ACCELERATE, percent] = _loaded(theirs, math.nan)
    answers = {sequences: _answers(loaded[OURS, WHOLE].model, sequences, arguments)[0] for sequences in arguments.sequences}
    for each in loaded.values():
        _answers(each.model, max(arguments.sequences), argparse.Namespace(prompt=arguments.prompt, tokens=_WARM_UP_TOKENS))
    cases: dict[Case, Callable[[], Run]] = {
        (case := Case(way, percent, sequences)): partial(_run, each, case, answers[sequences], arguments)
        for sequences in arguments.sequences
        for (way, percent), each in loaded.items()
    }
    more = {"gpu": torch.cuda.get_device_name(_GPU), "bus_bytes_per_s": _bus_bytes_per_s(layer_bytes), "weight_bytes": weight_bytes}
    return Result(interleave(cases, arguments.rounds), more=more)


def _saved(folder: Path, layers: int) -> Path:
    harness.say("a model of random weights")
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=2048, num_hidden_layers=layers, num_attention_heads=16, num_key_value_heads=8,
        intermediate_size=8192, max_position_embeddings=4096, dtype="bfloat16",
    )  # fmt: skip
    torch.manual_seed(1)
    with _GPU:
        transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    torch.cuda.empty_cache()
    return folder


def _dispatched(folder: Path, staying: int, layers: int) -> CausalLM:
    """A model of which transformers keeps so many layers on the GPU, and gets the others from the host when they compute."""
    places: dict[str, int | str] = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), 0)
    places |= {f"model.layers.{number}": 0 if number < staying else "cpu" for number in range(layers)}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.bfloat16, attn_implementation=ATTENTION, local_files_only=True, use_safetensors=True, device_map=places
    )
    return CausalLM(model.eval().requires_grad_(False), _GPU)


def _loaded(load: Callable[[], CausalLM], copied_mib: float) -> _Loaded:
    harness.say("loading")
    before = torch.cuda.memory_allocated(_GPU)
    model = load()
    return _Loaded(model, (torch.cuda.memory_allocated(_GPU) - before) / MIB, copied_mib)


def _sizes(model: CausalLM) -> tuple[int, int]:
    """Bytes of a layer, and of all weights."""
    inner: Any = model._model
    return sum(each.nbytes for each in decoder_layers(inner)[0].parameters()), sum(each.nbytes for each in inner.parameters())


def _bus_bytes_per_s(nbytes: int) -> float:
    device = CudaDevice(_GPU)
    source, target = device.host_memory(nbytes), device.device_memory(nbytes)
    source.fill_(1)
    device.copy(source, target)
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(_COPIES):
        device.copy(source, target)
    torch.cuda.synchronize()
    return _COPIES * nbytes / (time.perf_counter() - began_s)


def _run(loaded: _Loaded, case: Case, right: Sequence[Sequence[int]], arguments: argparse.Namespace) -> Run:
    harness.say(f"{case.way}: {case.percent} %, {case.sequences} sequences")
    answers, read_s, written_s = _answers(loaded.model, case.sequences, arguments)
    return Run(
        read_per_s=case.sequences * arguments.prompt / read_s,
        written_per_s=case.sequences * arguments.tokens / written_s,
        step_ms=1e3 * written_s / arguments.tokens,
        copied_mib=loaded.copied_mib,
        held_mib=loaded.held_mib,
        differing=sum(
            token != wanted for answer, whole in zip(answers, right, strict=True) for token, wanted in zip(answer, whole, strict=True)
        ),
    )


def _answers(model: CausalLM, sequences: int, arguments: argparse.Namespace) -> tuple[list[list[int]], float, float]:
    """Read prompts in one step and write an answer to each; return the answers, and what both took."""
    prompts = torch.randint(0, model.vocabulary, (sequences, arguments.prompt), generator=torch.Generator().manual_seed(sequences)).tolist()
    pieces = [Piece(prompt, KeyValues(arguments.prompt + arguments.tokens)) for prompt in prompts]
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    steps = [model.forward(pieces).argmax(dim=-1).tolist()]
    read_s = time.perf_counter()
    for _ in range(arguments.tokens):
        pieces = [Piece([token], piece.kept) for token, piece in zip(steps[-1], pieces, strict=True)]
        steps.append(model.forward(pieces).argmax(dim=-1).tolist())
    return [list(answer) for answer in zip(*steps, strict=True)], read_s - began_s, time.perf_counter() - read_s


if __name__ == "__main__":
    main()
