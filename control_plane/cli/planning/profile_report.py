"""Tables and remarks of `tidegate profile`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from control_plane.profiling.profiler import Profile
from control_plane.profiling.stages import Stage
from control_plane.profiling.streams import StreamProfile

_BUSY = 0.8
"""CPU seconds by second from which this process is what its threads wait for."""


def print_profile(model: str, found: Profile | StreamProfile) -> None:
    """Print a table of the stages, and a line below it."""
    if isinstance(found, Profile):
        total = Stage("all, at its client", found.total_ms, found.p50_ms, found.p99_ms)
        repeat = None if found.repeat_ms is None else Stage("sent again: from the cache", found.repeat_ms)
        table, more = _table(f"a request of {model}", found.stages, total), ""
        rows = [_row(each, total) for each in (found.server, repeat) if each is not None]
    else:
        total, more = found.first, _counts(found)
        table = _table(f"the first response of {model}", found.stages, total)
        rows = [_row(each) for each in (found.following, found.whole) if each is not None]
    for each in rows:
        table.add_row(*each)
    console = Console(soft_wrap=True)
    console.print(table)
    who = "1 caller" if found.concurrency == 1 else f"{found.concurrency} callers at once"
    told = f"{who}, {found.requests_per_s:.1f} requests a second{more}; -: nobody knows it of single requests"
    console.print(told, style="dim", highlight=False)


def remarks_on(found: Profile | StreamProfile) -> Iterator[str]:
    """Say what keeps the figures from being those of the requests alone."""
    if found.computed > found.requests:
        yield f"others had {found.computed - found.requests} requests computed meanwhile: Triton's parts are means over theirs, too"
    if found.computed < found.requests:
        yield (
            f"{found.requests - found.computed} of {found.requests} answers came from the cache, or from before the model was loaded "
            "anew, and Triton's parts are of the others"
        )
    if found.concurrency > 1 and found.client_busy > _BUSY:
        yield (
            f"this command itself computed {100 * found.client_busy:.0f} % of the time: its callers have waited for each other, which "
            f'is in "network and {found.protocol}"'
        )


def _table(title: str, stages: list[Stage], total: Stage) -> Table:
    table = Table(title, "ms", "p50", "p99", "%", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for stage in stages:
        table.add_row(*_row(stage, total))
    table.add_row(*_row(total, total), style="bold")
    return table


def _row(stage: Stage, total: Stage | None = None) -> list[str]:
    """Cells of a stage; without `total` it is no part of one."""
    figures = ("-" if each is None else f"{each:.2f}" for each in (stage.ms, stage.p50_ms, stage.p99_ms))
    return [stage.name, *figures, "" if total is None else f"{100 * stage.ms / max(total.ms, 1e-9):.0f}"]


def _counts(found: StreamProfile) -> str:
    tokens = "tokens uncounted by the model" if found.tokens is None else f"{found.tokens / found.requests:.1f} tokens"
    return f", {found.responses / found.requests:.1f} responses and {tokens} in each answer"
