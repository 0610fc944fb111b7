"""`tidegate top`: a live view of models, servers, rollouts and events, over the admin API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from control_plane.admin.client import AdminClient
from control_plane.cli.admin.routing.rollouts import present_step
from control_plane.cli.common.options import AdminUrlOption, StateDirOption, admin_client
from control_plane.cli.common.output import Shape, ShapeOption, print_found
from control_plane.cli.common.printing import printable
from control_plane.core.errors import InvalidRequest, ObjectNotFound
from control_plane.objects.domain.rollout import UNDER_WAY

_EVENTS = 5


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one view and end.")] = False,
    every_s: Annotated[float, typer.Option(min=0.2, max=60.0, help="Seconds between refreshes.")] = 2.0,
    models: Annotated[int, typer.Option(min=1, help="Show so many models, the busiest ones.")] = 20,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Show the busiest models, the servers, rollouts under way and the latest events."""
    client, console = admin_client(state_dir, admin_url), Console()
    if once:
        found = _look(client, models)
        print_found(found, output, lambda: console.print(_view(found)))
        return
    if output is not Shape.TABLE:
        raise InvalidRequest("--output goes with --once; `tidegate events --follow -o json` goes on")
    with Live(_view(_look(client, models)), console=console, auto_refresh=False, screen=console.is_terminal) as live:
        try:
            while True:
                time.sleep(every_s)
                live.update(_view(_look(client, models)), refresh=True)
        except KeyboardInterrupt:
            return


def _look(client: AdminClient, most: int) -> dict[str, Any]:
    """Ask for all that is shown; without a fleet there are no servers, and models have no rates."""
    found: dict[str, Any] = {"servers": [], "models": []}
    try:
        fleet = client.ask("GET", "fleet")
    except ObjectNotFound:
        found["models"] = [{"name": each["name"], "state": each["state"]} for each in client.list_models()]
    else:
        found["servers"] = [_server(each) for each in fleet["servers"]]
        found["models"] = [_model(each, fleet["servers"]) for each in fleet["models"]]
    found["models"] = sorted(found["models"], key=_idleness)[:most]
    found["rollouts"] = [each for each in client.ask_all("rollouts") if each["phase"] in UNDER_WAY]
    found["events"] = [each["data"] for each in client.events(follow=False)][-_EVENTS:]
    return found


def _idleness(model: Mapping[str, Any]) -> tuple[float, float, bool, str]:
    """The order of models: what is asked for most comes first, then what is loaded."""
    return -model.get("uses_per_s", 0.0), -model.get("in_flight", 0), model["state"] != "READY", model["name"]


def _server(server: Mapping[str, Any]) -> dict[str, Any]:
    doubts = [word for word in ("ejected", "silent", "draining") if server[f"is_{word}"]]
    return {
        "name": server["name"],
        "state": " ".join(doubts) or ("up" if server["is_up"] else "down"),
        "models": len(server["replicas"]),
        "in_flight": sum(each["in_flight"] for each in server["replicas"]),
        "held_bytes": server["held_bytes"],
        "budget_bytes": server["budget_bytes"],
    }


def _model(model: Mapping[str, Any], servers: list[dict[str, Any]]) -> dict[str, Any]:
    replicas = [each for server in servers for each in server["replicas"] if each["model"] == model["name"]]
    states = {each["state"] for each in replicas}
    return {
        "name": model["name"],
        "state": "READY" if "READY" in states else min(states, default=model["tier"]),
        "uses_per_s": model["uses_per_s"],
        "in_flight": sum(each["in_flight"] for each in replicas),
        "replicas": len(replicas),
    }


def _view(found: Mapping[str, Any]) -> RenderableType:
    parts = [_table(("model", "state", "a second", "in flight", "replicas"), [_model_row(each) for each in found["models"]])]
    if found["servers"]:
        parts.append(_table(("server", "state", "models", "in flight", "memory"), [_server_row(each) for each in found["servers"]]))
    if found["rollouts"]:
        parts.append(_table(("rollout", "to", "phase", "weight", "samples"), [_rollout_row(each) for each in found["rollouts"]]))
    if found["events"]:
        parts.append(_table(("at", "event", "model", "reason"), [_event_row(each) for each in found["events"]]))
    return Group(*parts)


def _table(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> Table:
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    return table


def _model_row(model: Mapping[str, Any]) -> tuple[object, ...]:
    rate = f"{model['uses_per_s']:.1f}" if "uses_per_s" in model else ""
    return model["name"], model["state"], rate, model.get("in_flight", ""), model.get("replicas", "")


def _server_row(server: Mapping[str, Any]) -> tuple[object, ...]:
    budget = "" if server["budget_bytes"] is None else f" of {server['budget_bytes'] / 2**20:,.0f}"
    return server["name"], server["state"], server["models"], server["in_flight"], f"{server['held_bytes'] / 2**20:,.0f}{budget} MiB"


def _rollout_row(rollout: Mapping[str, Any]) -> tuple[object, ...]:
    samples = f"{rollout['step_samples']} of {present_step(rollout)['samples']}"
    phase = rollout["phase"] + (", paused" if rollout["is_paused"] else "")
    return rollout["route"], rollout["model"], phase, f"{rollout['weight'] / 100:g} %", samples


def _event_row(event: Mapping[str, Any]) -> tuple[object, ...]:
    return event["at"][11:19], event["kind"], event.get("model", ""), event.get("reason", "") or event.get("what", "")
