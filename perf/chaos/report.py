"""The report of `perf.chaos`: of each drill what callers saw, held against what they are to see."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perf.chaos.drills import DRILLS, Drill
from perf.chaos.run import Run
from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target

_GOODPUT = 0.9
_REFUSED_MS = 20.0
_NORMAL_S = 2.0
_GROWN_MIB = 50.0
"""Over a minute that is flat: 1.5 GB were lost in four minutes once."""
_MEASURED = "longest_repeatable_s"
"""A figure whose absence is no success: no request failed, or was slow, where the others are absent."""
_WIDEST = 110
"""Characters of a line in documents."""
_SAID = 6
"""Texts at most that the summary file quotes of a drill."""


@dataclass(frozen=True, slots=True)
class Case:
    drill: str
    """A name of `drills.DRILLS`."""


class Report(report.Report):
    name, title, case, run = "chaos", "What can die, freeze, be slow, be full or lie", Case, Run
    programs = ("redis-server",)

    def figures(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for drill in self._drills():
            run = self.median(Case(drill.name))
            found |= {f"{drill.key}_{name}": getattr(run, name) for name in Run.__dataclass_fields__}
            found[f"{drill.key}_failed_share"] = run.failed / run.asked if run.asked else math.nan
            found[f"{drill.key}_lost_repeatable"] = run.failed_repeatable - run.refused_repeatable
        failed: dict[str, float] = (
            {"repeatable_failed": sum(found[f"{drill.key}_failed_repeatable"] for drill in self._drills())} if found else {}
        )
        failed["not_carried_out"] = len(self.result.more.get("not_carried_out", {}))
        return {name: value for name, value in (found | failed).items() if not math.isnan(value)}

    def targets(self) -> Sequence[Target]:
        # A drill that finds nothing to break proves nothing.
        carried_out = Target("not_carried_out", "drills that were not carried out", 0.0, at_least=False)
        return [carried_out, *(target for drill in self._drills() for target in _targets(drill))]

    def summary(self) -> str:
        head = (
            "drill",
            "requests",
            "failed",
            "though repeatable",
            "last failure after s",
            "longest answer s",
            "if repeatable s",
            "slow for s",
            "as before after s",
            "",
        )
        rows = [self._row(drill) for drill in self._drills() if not drill.is_overload]
        overloads = [self._overload_row(drill) for drill in self._drills() if drill.is_overload]
        streams = [self._streams_row(drill) for drill in self._drills() if not math.isnan(self.median(Case(drill.name)).streams)]
        streams_head = (
            "drill",
            "streams",
            "refused",
            "failed before a piece",
            "broken off with an error",
            "ended without a word",
            "as if whole",
            "last failure after s",
            "longest s",
        )
        load_head = (
            "drill",
            "requests",
            "failed",
            "in time, of the peak",
            "of that HTTP",
            "refused within ms (p90)",
            "memory MiB",
            "normal after s",
        )
        tables = (table(each_head, each) for each_head, each in ((head, rows), (streams_head, streams), (load_head, overloads)) if each)
        return "\n\n".join(filter(None, [*tables, self._not_carried_out()]))

    def details(self) -> str:
        said = self.result.more.get("said", {})
        quoted = [f"### {name}\n\n{DRILLS[name].done}\n\n{_texts(texts)}" for name, texts in said.items() if texts]
        return "\n\n".join(["## What was said", *quoted]) if quoted else ""

    def verdict(self, drill: Drill) -> str:
        """Of the table of drills (docs/operations/faults.md); empty for one that was not measured."""
        if Case(drill.name) not in self.runs:
            return ""
        figures = self.figures()
        missing = {target.figure: math.inf if target.figure.endswith(_MEASURED) else 0.0 for target in _targets(drill)}
        return "met" if all(each.is_met((missing | figures)[each.figure]) for each in _targets(drill)) else "**not met**"

    def measured(self, drill: Drill) -> str:
        """Of the same table."""
        run = self.median(Case(drill.name))
        if run is None:
            return ""
        if drill.is_overload:
            return f"{run.goodput:.0%} of the peak in time, normal after {run.normal_after_s:.1f} s"
        return f"{_whole_answers(run)}; {_streams(run)}" if run.streams > 0 else _whole_answers(run)

    def _drills(self) -> list[Drill]:
        return [DRILLS[case.drill] for case in self.runs if case.drill in DRILLS]

    def _row(self, drill: Drill) -> tuple[str, ...]:
        run = self.median(Case(drill.name))
        measured = (run.last_failure_s, run.longest_s, run.longest_repeatable_s, run.slow_until_s, run.whole_again_s)
        return (
            drill.name,
            f"{run.asked:,.0f}",
            f"{run.failed:.0f}",
            f"{run.failed_repeatable:.0f}",
            *map(figure, measured),
            self.verdict(drill),
        )

    def _streams_row(self, drill: Drill) -> tuple[str, ...]:
        run = self.median(Case(drill.name))
        ended = (run.streams_refused, run.streams_failed, run.streams_broken_off, run.streams_lost, run.streams_cut_short)
        measured = map(figure, (run.streams_last_failure_s, run.streams_longest_s))
        return drill.name, f"{run.streams:,.0f}", *(f"{each:.0f}" for each in ended), *measured

    def _overload_row(self, drill: Drill) -> tuple[str, ...]:
        run = self.median(Case(drill.name))
        measured = (run.goodput, run.http_part, run.refused_p90_ms, run.grown_mib, run.normal_after_s)
        return drill.name, f"{run.asked:,.0f}", f"{run.failed:.0f}", *map(figure, measured)

    def _not_carried_out(self) -> str:
        return "\n".join(f"* **{name}** was not carried out: {why}" for name, why in self.result.more.get("not_carried_out", {}).items())


def _whole_answers(run: Run) -> str:
    if not run.failed:
        return f"none of {run.asked:,.0f} failed, the longest took {figure(run.longest_s)} s"
    parts = ((run.failed_repeatable, "repeatable"), (run.refused_repeatable, "refused for now"))
    of_them = "".join(f"{count:.0f} of them {what}, " for count, what in parts if count)
    return f"{run.failed:.0f} of {run.asked:,.0f} failed, {of_them}the last after {figure(run.last_failure_s)} s"


def _streams(run: Run) -> str:
    ended = (
        (run.streams_refused, "refused for now"),
        (run.streams_failed, "failed"),
        (run.streams_broken_off, "broken off with an error"),
        (run.streams_lost, "ended without a word"),
        (run.streams_cut_short, "ended as if they were whole"),
    )
    return f"of {run.streams:,.0f} streams {', '.join(f'{count:.0f} {how}' for count, how in ended if count > 0) or 'none failed'}"


def table_of_drills(found: Report | None, *, to_root: str = "") -> str:
    """Every drill, measured or not; `to_root` is the way from the document to the repository's root, for its links."""
    head = ("what", "done to it", "callers see", "at most", "measured", "", "test")
    return table(head, [_row_of(drill, found, to_root) for drill in DRILLS.values()])


def list_of_drills(found: Report | None) -> str:
    """The names of all drills, as a paragraph of short lines; those that were measured and not met are said to be."""
    verdicts = {name: "" if found is None else found.verdict(drill) for name, drill in DRILLS.items()}
    named = "; ".join(f"{name} ({verdict})" if verdict.startswith("**") else name for name, verdict in verdicts.items())
    return textwrap.fill(f"{named[:1].upper()}{named[1:]}.", _WIDEST, break_on_hyphens=False)


def _row_of(drill: Drill, found: Report | None, to_root: str) -> tuple[str, ...]:
    measured = ("", "") if found is None else (found.measured(drill), found.verdict(drill))
    path, _, name = drill.test.partition("::")
    test = f"[{name}]({to_root}{path})" if path else "`make chaos`"
    return drill.name, drill.done, drill.seen, _limit(drill), *measured, test


def _limit(drill: Drill) -> str:
    if drill.is_overload:
        return f"normal after {_NORMAL_S:g} s"
    if not drill.failed:
        return "none fails"
    repeatable = f", of them {drill.lost:g} repeatable" if drill.lost else ", none repeatable"
    return f"failures for {drill.over_within_s:g} s{repeatable}"


def _targets(drill: Drill) -> Iterator[Target]:
    def at_most(name: str, what: str, limit: float) -> Target:
        return Target(f"{drill.key}_{name}", f"{drill.name}: {what}", limit, at_least=False)

    if drill.is_overload:
        yield Target(f"{drill.key}_goodput", f"{drill.name}: answers in time, of the peak's rate", _GOODPUT, at_least=True)
        yield at_most("refused_p90_ms", "p90 of refusals, ms", _REFUSED_MS)
        yield at_most("grown_mib", "memory it has grown by, MiB", _GROWN_MIB)
        yield at_most("normal_after_s", "normal again after, s", _NORMAL_S)
        return
    if drill.refuses:
        yield at_most("lost_repeatable", "failed though repeatable, and not told when to come again", drill.lost)
    else:
        yield at_most("failed_repeatable", "failed though repeatable", drill.lost)
        yield at_most("streams_refused", "streams refused", max(drill.lost, drill.streams_refused))
    yield at_most("streams_failed", "streams that fail before their first piece", drill.lost)
    yield at_most("streams_lost", "streams that end without a word", drill.lost)
    yield at_most("streams_cut_short", "streams that end as if they were whole", 0.0)
    if not math.isinf(drill.failed):
        yield at_most("failed", "failed", drill.failed)
        yield at_most("streams_broken_off", "streams broken off", drill.failed)
    else:
        yield at_most("last_failure_s", "last failure after, s", drill.over_within_s)
        yield at_most("streams_last_failure_s", "last failure of a stream after, s", drill.over_within_s)
    if not math.isinf(drill.failed_share):
        yield at_most("failed_share", "failed, of all", drill.failed_share)
    if not math.isinf(drill.slow_until_s):
        yield at_most("slow_until_s", "last request that takes a second is sent after, s", drill.slow_until_s)
    if not math.isinf(drill.longest_repeatable_s):
        yield at_most("longest_repeatable_s", "longest answer to what is repeatable, s", drill.longest_repeatable_s)


def _texts(texts: dict[str, int]) -> str:
    shown = [f"* {count:,} x `{text.replace('`', chr(39))}`" for text, count in list(texts.items())[:_SAID]]
    more = sum(list(texts.values())[_SAID:])
    return "\n".join([*shown, *([f"* {more:,} others"] if more else [])])
