"""What continuous batching brings: one language model whose answers share each step, beside the same one that answers one caller after the
other, for callers who ask at the same moment. One caller alone has nobody to share with: there it is beside transformers' own loop.
And how long an answer pauses while a long prompt is read.

    python -m perf.generation [--rounds 5] [--callers 1 4 8] [--tokens 32] [--long-tokens 900]

All are `text_generation`'s fp32 weights, in one Triton behind one gateway, on the CPU; answers are streamed over gRPC, and all have the
same length. Writes perf/results/generation.json and .md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from perf.generation.callers import ask, ask_beside
from perf.generation.report import ALONE, CALLERS, LONG_TOKENS, PLAIN, SHARED, Case, Report, Run
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.servers.processes import PROJECT
from perf.servers.serving import tidegate
from perf.servers.variants import place

_WEIGHTS = PROJECT / "model_repository" / "text_generation" / "1" / "fp32"
_PEER = PROJECT / "perf" / "peers" / "generation"
_NAMES = {SHARED: "shared", ALONE: "alone", PLAIN: "plain"}
_SEQUENCES = {SHARED: 16, ALONE: 1}
_FOLDER = f'parameters {{ key: "folder" value: {{ string_value: "{_WEIGHTS}" }} }}\n'
_CONFIG = """
backend: "text_generator"
parameters {{ key: "max_sequences" value: {{ string_value: "{sequences}" }} }}
parameters {{ key: "kv_cache_tokens" value: {{ string_value: "8192" }} }}
"""
_THINGS = "the tide", "a harbour", "a gate", "the moon", "salt", "a rope", "a lighthouse", "an anchor"
_QUESTION = "Tell me in a few sentences about {thing}, as you would tell child number {number}."
_ASKED = f"<|im_start|>user\n{_QUESTION}<|im_end|>\n<|im_start|>assistant\n"


def main() -> None:
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--callers", nargs="+", type=int, default=list(CALLERS), help="who ask at the same moment")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--long-tokens", type=int, default=LONG_TOKENS, help="of the prompt that is read beside an answer")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as name, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as client:
        repository = Path(name)
        for way, sequences in _SEQUENCES.items():
            place(repository, _NAMES[way], _CONFIG.format(sequences=sequences) + _FOLDER, {})
            (repository / _NAMES[way] / "1").mkdir()
        place(repository, _NAMES[PLAIN], (_PEER / "config.pbtxt").read_text() + _FOLDER, {"1/model.py": _PEER / "1" / "model.py"})
        flags = ["--model-repository", name, *(part for each in _NAMES.values() for part in ("--load", each))]
        with tidegate(flags) as started:
            run = partial(_run, client, started.addresses["grpc"], tokens=arguments.tokens)
            for way in _NAMES:  # the first answers warm the model up
                run(Case(way, 2))
            cases: dict[Case, Callable[[], Run]] = {
                case: partial(run, case)
                for callers in arguments.callers
                for case in (Case(SHARED, callers), Case(PLAIN if callers == 1 else ALONE, callers))
            }
            beside = partial(_run_beside, client, started.addresses["grpc"])
            cases |= {case: partial(beside, case) for case in (Case(SHARED, callers, arguments.long_tokens) for callers in (0, 1))}
            return Result(interleave(cases, arguments.rounds))


def _run(client: ProcessPoolExecutor, address: str, case: Case, *, tokens: int) -> Run:
    harness.say(f"{case.way}: {case.callers} callers")
    prompts = [_ASKED.format(thing=_THINGS[number % len(_THINGS)], number=number) for number in range(case.callers)]
    heard = client.submit(ask, address, _NAMES[case.way], prompts, tokens).result()
    if wrong := [each.tokens for each in heard if each.tokens != tokens]:
        raise RuntimeError(f"answers have {wrong} tokens instead of {tokens}")
    longest_s = max(each.last_s for each in heard)
    return Run(
        tokens_per_s=tokens * len(heard) / longest_s,
        first_ms=1e3 * median(each.first_s for each in heard),
        token_ms=1e3 * median((each.last_s - each.first_s) / max(1, tokens - 1) for each in heard),
        last_ms=1e3 * longest_s,
    )


def _run_beside(client: ProcessPoolExecutor, address: str, case: Case) -> Run:
    harness.say(f"{case.way}: a prompt of {case.beside} tokens beside {case.callers} answers")
    long = " tide" * case.beside
    if not case.callers:
        (heard,) = client.submit(ask, address, _NAMES[case.way], [long], 1).result()
        return Run(read_ms=1e3 * heard.first_s)
    prompt = _ASKED.format(thing=_THINGS[0], number=0)
    pause_s, read_s = client.submit(ask_beside, address, _NAMES[case.way], prompt, long).result()
    return Run(pause_ms=1e3 * pause_s, read_ms=1e3 * read_s)


if __name__ == "__main__":
    main()
