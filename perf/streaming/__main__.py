"""What a bound on a model's weights in memory saves, and what it costs: the text encoder's fp32 file with all of its weights in memory, and
with 32 and 8 of its 86 MiB, in one Triton behind one gateway, on the CPU.

    python -m perf.streaming [--rounds 5] [--requests 20]

One caller asks for one short text at a time, and for batches of 32. The file is in the page cache, as after any load; from a slow disk
reading takes as long as that disk does. Writes perf/results/streaming.json and .md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tritonclient.http as triton

from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.servers.processes import tree
from perf.servers.serving import tidegate
from perf.servers.variants import REFERENCE, bare_file, place
from perf.streaming.report import BATCH, BUDGETS, SHORT, WHOLE, Case, Report, Run

_CONFIG = """
backend: "onnxruntime"
max_batch_size: 32
input [ { name: "INPUT_IDS" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "ATTENTION_MASK" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "EMBEDDING" data_type: TYPE_FP32 dims: [ 384 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
_BOUND = 'parameters {{ key: "weight_memory_mb" value {{ string_value: "{mib}" }} }}\n'
_ROWS = {SHORT: 1, BATCH: 32}
_TOKENS = 16


def main() -> None:
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--requests", type=int, default=20, help="in a row, of each kind in each round")
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as name:
        for mib in BUDGETS:
            place(
                Path(name),
                _model(mib),
                _CONFIG + ("" if mib == WHOLE else _BOUND.format(mib=mib)),
                {"1/model.onnx": bare_file([REFERENCE])},
            )
        loads = [part for mib in BUDGETS for part in ("--load", _model(mib))]
        with tidegate(["--model-repository", name, "--cache-bytes", "0", *loads]) as started:
            client = triton.InferenceServerClient(started.addresses["http"], network_timeout=60.0)
            asked = {kind: _texts(rows) for kind, rows in _ROWS.items()}
            right = {kind: _embedding(client, _model(WHOLE), inputs) for kind, inputs in asked.items()}
            run = partial(_run, client, started.pid, asked, right, arguments.requests)
            cases: dict[Case, Callable[[], Run]] = {
                case: partial(run, case) for kind in _ROWS for case in (Case(mib, kind) for mib in BUDGETS)
            }
            return Result(interleave(cases, arguments.rounds))


def _run(client: Any, pid: int, asked: dict[str, list[Any]], right: dict[str, np.ndarray], requests: int, case: Case) -> Run:
    harness.say(f"{_model(case.mib)}: {case.asked}")
    took, difference = list[float](), 0.0
    for _ in range(requests):
        began_s = time.perf_counter()
        answer = _embedding(client, _model(case.mib), asked[case.asked])
        took.append(time.perf_counter() - began_s)
        difference = max(difference, float(np.abs(answer - right[case.asked]).max()))
    return Run(p50_ms=1e3 * median(took), resident_mib=_resident_mib(pid, _model(case.mib)), difference=difference)


def _model(mib: int) -> str:
    return "whole" if mib == WHOLE else f"with_{mib}_mib"


def _texts(rows: int) -> list[Any]:
    ids = np.random.default_rng(rows).integers(1000, 29000, (rows, _TOKENS))
    inputs = []
    for name, array in (("INPUT_IDS", ids), ("ATTENTION_MASK", np.ones_like(ids))):
        inputs.append(triton.InferInput(name, array.shape, "INT64"))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def _embedding(client: Any, model: str, inputs: list[Any]) -> np.ndarray:
    found: np.ndarray = client.infer(model, inputs).as_numpy("EMBEDDING")
    return found


def _resident_mib(pid: int, model: str) -> float:
    """The most that the model's stub has held."""
    most = []
    for each in tree(pid):
        command = Path(f"/proc/{each}/cmdline").read_bytes()
        if b"python_backend_stub" in command and f"/{model}/".encode() in command:
            most += [line for line in Path(f"/proc/{each}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return max(int(line.split()[1]) for line in most) / 1024


if __name__ == "__main__":
    main()
