"""What a scenario's result is, how it lies in `perf/results/NAME.json`, and how a report reads it.

A report is a pure function of that file: `make perf-docs` writes the tables in the documents from the files alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from perf.measurement.interleaved import median_of
from perf.measurement.markdown import figure, table
from perf.measurement.provenance import told
from perf.servers.processes import PROJECT

RESULTS = PROJECT / "perf" / "results"


@dataclass(frozen=True, slots=True)
class Target:
    """The limit that one of a report's figures is held against."""

    figure: str
    """Its name."""
    what: str
    limit: float
    at_least: bool

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def row(self, value: float) -> tuple[str, ...]:
        """Return the target's row in a table of targets."""
        wanted = f"{'>=' if self.at_least else '<='} {self.limit:.3g}"
        return self.what, figure(value), wanted, "met" if self.is_met(value) else "**not met**"


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of a scenario found."""

    runs: Mapping[Any, list[Any]]
    """By case, one for each round; cases and runs are dataclasses of plain values."""
    sources: Sequence[str] = ()
    """Sources of texts or traces, in words."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What belongs to no case."""
    options: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)
    """See `perf.measurement.provenance`."""


class Report:
    """Figures, targets and tables of a scenario's result."""

    name: ClassVar[str]
    """Name of the scenario, and of its files."""
    title: ClassVar[str]
    case: ClassVar[type]
    run: ClassVar[type]
    plot: ClassVar[str] = ""
    """The suffix of its plot, if it has one."""
    programs: ClassVar[Sequence[str]] = ()
    """Programs of Debian that the scenario runs; see `perf.servers.processes`."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.runs, self.options = result.runs, result.options

    @classmethod
    def module(cls) -> str:
        """Name of the package that measures it."""
        return f"perf.{cls.name.replace('-', '_')}"

    def figures(self) -> dict[str, float]:
        """Return the figures that targets and documents name; none of a case that was not measured."""
        return {}

    def targets(self) -> Sequence[Target]:
        return ()

    def summary(self) -> str:
        """Return the scenario's tables in perf/README.md, in Markdown."""
        raise NotImplementedError

    def details(self) -> str:
        """Return what only the scenario's own summary file has besides."""
        return ""

    def median(self, case: Any) -> Any:
        """Return each figure's median over the rounds; None for what was not measured."""
        return median_of(self.runs[case]) if case in self.runs else None

    def over_rounds(self, case: Any, other: Any, compare: Callable[[Any, Any], float]) -> float:
        """Return the median of what comes of comparing two cases within each round; NaN where one was not measured."""
        pairs = zip(self.runs.get(case, ()), self.runs.get(other, ()), strict=False)
        return median([compare(*pair) for pair in pairs] or [math.nan])

    def names(self, key: str) -> list[Any]:
        """Return the values of one field of the cases, each once."""
        return list(dict.fromkeys(getattr(case, key) for case in self.runs))

    def block(self) -> str:
        """Return what perf/README.md has of the scenario."""
        return "\n\n".join(filter(None, [told(self.result.measured), self._target_table(), self.summary()]))

    def markdown(self) -> str:
        """Return the whole of the scenario's summary file."""
        sources = "\n".join(f"* {each}" for each in self.result.sources)
        plot = f"![{self.title}]({self.name}.{self.plot})" if self.plot else ""
        return "\n\n".join(filter(None, [f"# {self.title}", self.block(), plot, self.details(), sources])) + "\n"

    def _target_table(self) -> str:
        figures = self.figures()
        rows = [target.row(figures[target.figure]) for target in self.targets() if target.figure in figures]
        return table(("target", "measured", "wanted", ""), rows) if rows else ""

    def document(self) -> dict[str, Any]:
        """Return the result as JSON, with the figures that were made of it."""
        result = self.result
        head = {"scenario": self.name, "measured": result.measured, "options": result.options, "sources": list(result.sources)}
        figures = self.figures()
        targets = [
            {**asdict(each), "measured": figures[each.figure], "is_met": each.is_met(figures[each.figure])}
            for each in self.targets()
            if each.figure in figures
        ]
        cases = [
            {"case": asdict(case), "median": asdict(median_of(runs)), "rounds": [asdict(run) for run in runs]}
            for case, runs in self.runs.items()
        ]
        written: dict[str, Any] = _without_nan({**head, "targets": targets, "figures": figures, "more": result.more, "cases": cases})
        return written

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(json.dumps(self.document(), indent=1) + "\n")
        (folder / f"{self.name}.md").write_text(self.markdown())

    @classmethod
    def read(cls, folder: Path = RESULTS) -> Report:
        """Read a result as it was written. Raises FileNotFoundError."""
        document = json.loads((folder / f"{cls.name}.json").read_text())
        runs = {cls.case(**each["case"]): [cls._run(figures) for figures in each["rounds"]] for each in document["cases"]}
        return cls(Result(runs, document["sources"], document["more"], document["options"], document["measured"]))

    @classmethod
    def _run(cls, figures: Mapping[str, Any]) -> Any:
        return cls.run(**{name: math.nan if value is None else value for name, value in figures.items()})


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: null stands for it."""
    if isinstance(value, Mapping):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value
