"""Tables of `tidegate fleet`: renders `GET /fleet`, readable in 80 columns, with or without colour. Does no
I/O.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Column, Table

from control_plane.cli.common.printing import printable
from control_plane.fleet.domain.memory import EVERYWHERE

View = Mapping[str, Any]
"""A JSON object of the admin API's response."""

_MIB = 2**20
_FEW = 8
"""Models that a short terminal shows before it shows any events."""
_KINDS = {"evicted": "yellow", "loaded": "green", "up": "green", "readmitted": "green", "answering": "green"} | dict.fromkeys(
    ("failed", "lost", "down", "ejected", "silent"), "red"
)
_TIERS = {"hot": 0, "warm": 1, "cold": 2}


def fleet_tables(found: View, *, events: int, models: int | None = None) -> RenderableType:
    """Render servers, the `models` most used models (None: all) and the latest `events` events."""
    parts: list[RenderableType] = [*_servers(found["servers"]), "", *_models(found["models"], models)]
    if events and found["events"]:
        parts += ["", _events(found["events"][-events:])]
    parts += [part for note in found["notes"] for part in ("", f"[yellow]note:[/] {_text(note)}")]
    if not found["is_leader"]:
        parts += ["", "[dim]Another process is this fleet's leader: the events of loads and unloads are shown there.[/]"]
    return Group(*parts)


def _table(title: str, *columns: Column) -> Table:
    return Table(*columns, box=None, title=title, title_justify="left", pad_edge=False)


def _name(header: str) -> Column:
    return Column(header, overflow="fold")


def _figure(header: str) -> Column:
    return Column(header, justify="right", no_wrap=True)


def _servers(servers: Sequence[View]) -> list[RenderableType]:
    """Render one line per server, and below it its replicas over the whole width."""
    width = max((len(server["name"]) for server in servers), default=0)
    parts: list[RenderableType] = ["[italic]servers[/]"]
    for server in servers:
        budget = "no bound" if server["budget_bytes"] is None else _size(server["budget_bytes"])
        held = f"{_size(server['held_bytes'])} of {budget}"
        parts.append(f"{_text(server['name'].ljust(width))}  {_server_state(server)}  {held}{_pool(server)}")
        parts.append(Padding(", ".join(map(_replica, server["replicas"])) or "[dim]nothing[/]", (0, 0, 0, 2)))
    return parts


def _server_state(server: View) -> str:
    if not server["is_up"]:
        return "[red]down[/]"
    if server["is_draining"]:
        return "[yellow]leaving[/]"
    if server["is_silent"]:
        return "[red]silent[/]"
    return "[red]ejected[/]" if server["is_ejected"] else "[green]up[/]"


def _pool(server: View) -> str:
    labels = [f"{key}={value}" for key, value in sorted(server["labels"].items())]
    pool = [f"pool {server['pool']}"] if server["pool"] else []
    return "".join(f"  {_text(each)}" for each in (*pool, *labels))


def _replica(replica: View) -> str:
    """Render one replica: its model, and its state where it is not simply ready."""
    name = _text(replica["model"])
    match replica["state"]:
        case "LOADING":
            return f"[yellow]{name} (loads, {replica['ready_in_s'] or 0.0:.1f} s)[/]"
        case "UNLOADING":
            return f"[dim]{name} (unloads)[/]"
    sequences = f" ({replica['sequences']} seq.)" if replica["sequences"] else ""
    return f"[green]{name}[/]{sequences}"


def _models(models: Sequence[View], most: int | None) -> list[RenderableType]:
    is_cold = any(model["fetch_s"] for model in models)
    figures = [_figure(header) for header in ("replicas", "memory", "load", "uses/s", *(["to fetch"] if is_cold else []))]
    table = _table("models", _name("model"), Column("tier", no_wrap=True), *figures)
    ordered = sorted(models, key=lambda model: (_TIERS[model["tier"]], -model["uses_per_s"], model["name"]))
    for model in ordered[:most]:
        tier = f"[{'green' if model['tier'] == 'hot' else 'dim'}]{model['tier']}[/]"
        cells = (_copies(model), _size(model["resident_bytes"]), f"{model['load_s']:.1f} s", f"{model['uses_per_s']:.2f}")
        table.add_row(_text(model["name"]), tier, *cells, *([_fetch(model)] if is_cold else []))
    hidden = 0 if most is None else len(models) - most
    return [table, *([f"[dim]and {hidden} more[/]"] if hidden > 0 else []), *map(_trouble, filter(_is_refused, models))]


def _copies(model: View) -> str:
    """Render the number of replicas, with its bounds where any are set: `2 (1-4)`, `3 (2+)`, `3 (all)`."""
    least, most = model["min_replicas"], model["max_replicas"]
    if least >= EVERYWHERE:
        return f"{len(model['servers'])} (all)"
    bounds = "" if not least and most is None else f" ({least}{'+' if most is None else f'-{most}'})"
    return f"{len(model['servers'])}{bounds}"


def _fetch(model: View) -> str:
    if not model["fetch_s"]:
        return ""
    size = "" if model["fetch_bytes"] is None else f"{_size(model['fetch_bytes'])}, "
    return f"{size}{model['fetch_s']:.0f} s"


def _is_refused(model: View) -> bool:
    return bool(model["is_suspended"] or model["quarantined_for_s"])


def _trouble(model: View) -> str:
    """Say why a model is not loaded, on a line of its own, since reasons are long."""
    name = _text(model["name"])
    if model["is_suspended"]:
        return f"[yellow]{name} is not loaded on demand: an administrator has unloaded it[/]"
    why = _text(_first_line(model["why_quarantined"]) or "it failed to load")
    return f"[red]{name} is quarantined for {model['quarantined_for_s']:.0f} s: {why}[/]"


def _events(events: Sequence[View]) -> Table:
    table = _table("latest", Column("UTC", no_wrap=True), Column("", no_wrap=True), Column("", overflow="fold"))
    for event in events:
        when = time.strftime("%H:%M:%S", time.gmtime(event["at_s"]))
        kind = f"[{_KINDS.get(event['kind'], 'dim')}]{event['kind']}[/]"
        table.add_row(when, kind, _text(_event_text(event)))
    return table


def _event_text(event: View) -> str:
    took = f" in {event['seconds']:.1f} s" if event["seconds"] else ""
    why = _first_line(event["reason"])
    what = f"{event['model']} on {event['server']}{took}" if event["model"] else f"server {event['server']}{_after(event)}"
    return f"{what}{': ' if why else ''}{why}"


def _after(event: View) -> str:
    return f" after {event['seconds']:.1f} s" if event["seconds"] else ""


def tables_that_fit(
    found: View, *, height: int, events: int, models: int | None, rows_of: Callable[[RenderableType], int]
) -> RenderableType:
    """Render as much as fits into `height` rows, since nobody can scroll in a table that is refreshed.

    Where there is no room for all, events make room for models. `rows_of` counts the rows of a rendering.
    """
    wanted = len(found["models"]) if models is None else models
    for fewer in (events, events // 2, events // 4, 0):
        room = height - rows_of(fleet_tables(found, events=fewer, models=0))
        if room >= min(wanted, _FEW):
            break
    return fleet_tables(found, events=fewer, models=max(1, min(room, wanted)))


def _text(text: str) -> str:
    """Show text from models, servers and files literally: no markup and no control characters of theirs take
    effect.
    """
    return escape(printable(text))


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _size(count: int) -> str:
    return f"{count / _MIB:.0f} MiB" if count < 1000 * _MIB else f"{count / 1024 / _MIB:.1f} GiB"
