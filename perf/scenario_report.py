"""What a scenario's report is: every round as JSON, and a summary in Markdown, written and printed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.markdown import Markdown

from perf.gateway_report import commit, machine
from perf.interleaved import median_of


@dataclass(frozen=True)
class ScenarioReport:
    """Of `perf.<name>`, written into the folder `arguments.output`. `results` are runs by case, both dataclasses."""

    name: ClassVar[str]

    results: Mapping[Any, list[Any]]
    texts: Sequence[str]
    arguments: argparse.Namespace

    def markdown(self) -> str:
        """The summary."""
        raise NotImplementedError

    def figures(self) -> dict[str, Any]:
        """What else goes into the JSON."""
        return {}

    def write(self) -> None:
        rows = [
            {**asdict(case), "median": asdict(median_of(runs)), "rounds": [asdict(run) for run in runs]}
            for case, runs in self.results.items()
        ]
        document = {"scenario": self.name, "command": self.command(), "commit": commit(), "machine": machine(), "texts": self.texts}
        self.path("json").write_text(json.dumps({**document, **self.figures(), "cases": rows}, indent=1) + "\n")
        self.path("md").write_text(self.markdown())

    def path(self, suffix: str) -> Path:
        folder: Path = self.arguments.output
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{self.name}.{suffix}"

    def command(self) -> str:
        return " ".join([f"python -m perf.{self.name}", *sys.argv[1:]])

    def print(self) -> None:
        Console(width=140).print(Markdown(self.markdown()))
