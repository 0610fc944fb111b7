"""The report of `perf.streaming_gpu`: what a bound on a language model's weights on its GPU costs, and what another way of it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

OURS, ACCELERATE = "weight_memory_mb", "accelerate"
WHOLE, LEAST = 100, 16
PERCENTS = (WHOLE, 50, 25, LEAST)
SEQUENCES = (1, 16)


@dataclass(frozen=True, slots=True)
class Case:
    way: str
    percent: int
    """Part of the model's weights that is on the GPU at a time; `WHOLE`: all of them."""
    sequences: int
    """Sequences that are read, and written, together."""


@dataclass(frozen=True, slots=True)
class Run:
    read_per_s: float
    """Tokens of all prompts, which are read in one step."""
    written_per_s: float
    """Tokens of all answers."""
    step_ms: float
    """From one token of an answer to its next."""
    copied_mib: float
    """MiB of weights that each step copies to the GPU; NaN where it is not known."""
    held_mib: float
    """MiB of weights that are on the GPU at any time."""
    differing: float
    """Tokens of the answers that are not those that the model with all of its weights on the GPU wrote first; its own later answers to
    many sequences have some, too."""


class Report(report.Report):
    name, title, case, run = "streaming-gpu", "A language model's weights in a part of a GPU's memory", Case, Run

    @property
    def bus_bytes_per_s(self) -> float:
        """Bandwidth of a copy from the host to the GPU while nothing computes."""
        found: float = self.result.more["bus_bytes_per_s"]
        return found

    def figures(self) -> dict[str, float]:
        one, many = (Case(OURS, LEAST, sequences) for sequences in SEQUENCES)
        alone = [run for case, runs in self.runs.items() if case.way == OURS and case.sequences == one.sequences for run in runs]
        found = {
            "differing": max((run.differing for run in alone), default=math.nan),
            "held_part": self.over_rounds(one, replace(one, percent=WHOLE), lambda part, whole: part.held_mib / whole.held_mib),
            "bus_part": self.over_rounds(one, one, lambda run, _: run.copied_mib * 2**20 / run.step_ms * 1e3 / self.bus_bytes_per_s),
        }
        for case, name in ((one, "one"), (many, "many")):
            found[f"{name}_peer_times"] = self.over_rounds(case, replace(case, way=ACCELERATE), _written)
            found[f"{name}_whole_part"] = self.over_rounds(case, replace(case, percent=WHOLE), _written)
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def targets(self) -> Sequence[Target]:
        one, many = SEQUENCES
        least = f"with {LEAST} % of the weights on the GPU"
        return [
            Target("differing", f"tokens of {one} sequence that differ from those of the whole model", 0, at_least=False),
            Target("held_part", f"weights on the GPU {least}, as a part of the whole model's", LEAST / 100, at_least=False),
            Target("bus_part", f"bytes copied a second {least}, as a part of what the bus copies alone", 0.9, at_least=True),
            Target("one_peer_times", f"tokens/s of {one} sequence {least}, times those of transformers' device_map", 2.0, at_least=True),
            Target("many_peer_times", f"tokens/s of {many} sequences {least}, times those of transformers' device_map", 2.0, at_least=True),
        ]

    def summary(self) -> str:
        more = self.result.more
        told = (
            f"{more['gpu']}, to which the bus copies {self.bus_bytes_per_s / 1e9:.0f} GB/s. A Llama of {self.options['layers']} layers, "
            f"{more['weight_bytes'] / 1e9:.1f} GB of BF16; prompts have {self.options['prompt']} tokens each. "
            f"`{ACCELERATE}` is transformers' `device_map`, with as many layers on the GPU as ours and its two buffers together. "
            "MiB a step are copied; tokens differ from the first answers of the model with all of its weights there."
        )
        head = (
            "sequences",
            "% on the GPU",
            "",
            "MiB of weights there",
            "read tokens/s",
            "written tokens/s",
            "step ms",
            "MiB a step",
            "differ",
        )
        rows = sorted(self.runs, key=lambda case: (case.sequences, -case.percent, case.way != OURS))
        return f"{told}\n\n" + table(head, map(self._row, rows))

    def _row(self, case: Case) -> tuple[str, ...]:
        run = self.median(case)
        figures = map(figure, (run.held_mib, run.read_per_s, run.written_per_s, run.step_ms, run.copied_mib))
        return str(case.sequences), str(case.percent), case.way if case.percent < WHOLE else "", *figures, f"{run.differing:g}"


def _written(ours: Run, theirs: Run) -> float:
    return ours.written_per_s / theirs.written_per_s
