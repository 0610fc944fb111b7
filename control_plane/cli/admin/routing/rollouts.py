"""`tidegate rollouts`: begins, watches and ends rollouts of a route's next model, over the admin API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from control_plane.admin.client import AdminClient
from control_plane.cli.admin.routing.rollout_options import (
    BLUE_GREEN_PERCENT,
    DEFAULT_STEPS,
    SHADOW_PERCENT,
    AgreementOption,
    AlphaOption,
    BakeOption,
    BlueGreenOption,
    MayDifferOption,
    PolicyOption,
    SamplesOption,
    SecondsOption,
    ShadowOption,
    ShadowPercentOption,
    ShadowSamplesOption,
    SlowerByOption,
    StepsOption,
    TensorOption,
    ToOption,
)
from control_plane.cli.common.changing import finite_number, given, percent
from control_plane.cli.common.options import AdminUrlOption, StateDirOption, admin_client
from control_plane.cli.common.output import Shape, ShapeOption, listed, print_found
from control_plane.cli.common.printing import print_table, remark
from control_plane.core.errors import InvalidRequest, UpstreamUnavailable
from control_plane.objects.domain.rollout import UNDER_WAY

app = typer.Typer(help="Take a route's requests over to another model, step by step, and back by itself.", no_args_is_help=True)

RouteArgument = Annotated[str, typer.Argument(help="The route, as `tidegate routes list` shows it.")]
_WATCH_EVERY_S = 1.0
_SHADOW_S = 30.0
_FAILED = ("rolled_back", "aborted")


@app.command()
def start(
    route: RouteArgument,
    to: ToOption,
    policy: PolicyOption = "",
    steps: StepsOption = None,
    samples: SamplesOption = None,
    seconds: SecondsOption = None,
    blue_green: BlueGreenOption = False,
    shadow: ShadowOption = True,
    shadow_percent: ShadowPercentOption = SHADOW_PERCENT,
    shadow_samples: ShadowSamplesOption = 200,
    agreement: AgreementOption = None,
    tensor: TensorOption = "",
    may_differ: MayDifferOption = None,
    bake: BakeOption = None,
    slower_by: SlowerByOption = None,
    alpha: AlphaOption = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Begin a rollout: the next model gets more requests from step to step, and none as soon as it is worse."""
    if blue_green and steps is not None:
        raise InvalidRequest("--blue-green is one step of its own: leave it out, or --steps")
    if agreement is None and (tensor or may_differ is not None):
        raise InvalidRequest("--tensor and --may-differ are of a comparison that --agreement asks for: add --agreement KIND")
    wanted = steps if steps is not None or policy else DEFAULT_STEPS
    percents = [BLUE_GREEN_PERCENT] if blue_green else _percents_of(wanted) if wanted else []
    model, _, version = to.replace(":", "@").partition("@")
    body = {
        "model": model,
        "version": version,
        "policy": policy,
        "steps": _steps(percents, samples, seconds, policy),
        "slower_by": slower_by,
        "alpha": alpha,
        "shadow": _shadow(shadow_percent, shadow_samples, seconds) if shadow else None,
        "agreement": None if agreement is None else _agreement(agreement, tensor, may_differ),
        "bake_s": bake,
    }
    _show(admin_client(state_dir, admin_url).ask("POST", "rollouts", route, body=body), output)
    remark(f"watch it with `tidegate rollouts watch {route}`")


@app.command()
def status(
    route: Annotated[str | None, typer.Argument(help="The route; none: all.")] = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Show how far rollouts are, and what their gates say."""
    client = admin_client(state_dir, admin_url)
    if route is None:
        _show(client.ask_all("rollouts"), output)
        return
    found = client.ask("GET", "rollouts", route)
    _show(found, output)
    if output is Shape.TABLE:
        _show_gates(found)


@app.command()
def watch(
    route: RouteArgument,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Print what happens until the rollout has ended; exit status 1 if the next model was not promoted."""
    client, shown, is_away, doubt = admin_client(state_dir, admin_url), 0.0, False, ""
    rollout = client.ask("GET", "rollouts", route)
    while True:
        for event in rollout["events"]:
            if event["at_s"] > shown:
                remark(_event(event))
                shown = event["at_s"]
        if rollout["doubt"] and not doubt:
            remark(_holds(rollout))
        doubt = rollout["doubt"]
        if rollout["phase"] not in UNDER_WAY:
            _show(rollout, output)
            if output is Shape.TABLE:
                _show_gates(rollout)
            raise typer.Exit(1 if rollout["phase"] in _FAILED else 0)
        time.sleep(_WATCH_EVERY_S)
        try:
            rollout, is_away = client.ask("GET", "rollouts", route), False
        except UpstreamUnavailable as exc:  # of a restart: an exit status of 1 would say that the next model was worse
            if not is_away:
                remark(f"{exc}; asking again")
            is_away = True


@app.command()
def pause(
    route: RouteArgument, output: ShapeOption = Shape.TABLE, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None
) -> None:
    """Hold a rollout at its step. A next model that is worse is rolled back all the same."""
    _change(admin_client(state_dir, admin_url), route, "pause", output)


@app.command()
def resume(
    route: RouteArgument, output: ShapeOption = Shape.TABLE, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None
) -> None:
    """Let a rollout go on that was paused."""
    _change(admin_client(state_dir, admin_url), route, "resume", output)


@app.command()
def promote(
    route: RouteArgument, output: ShapeOption = Shape.TABLE, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None
) -> None:
    """Make the next model the route's at once."""
    _change(admin_client(state_dir, admin_url), route, "promote", output)


@app.command()
def abort(
    route: RouteArgument, output: ShapeOption = Shape.TABLE, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None
) -> None:
    """End a rollout: all requests go to the present model."""
    _change(admin_client(state_dir, admin_url), route, "abort", output)


@app.command()
def history(
    route: RouteArgument, output: ShapeOption = Shape.TABLE, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None
) -> None:
    """List what has happened in the rollouts of a route."""
    events = admin_client(state_dir, admin_url).ask("GET", "rollouts", route)["events"]
    rows = ((_at(each), _percents(each["weight"]), each["what"], each["by"]) for each in events)
    print_found(events, output, lambda: print_table(("at", "weight", "what", "by"), rows))


def _change(client: AdminClient, route: str, verb: str, output: Shape) -> None:
    _show(client.ask("POST", "rollouts", route, verb), output)


def _steps(percents: list[float], samples: int | None, seconds: float | None, policy: str) -> list[dict[str, Any]]:
    """Return the steps of a rollout as the admin API takes them; none where its policy has them. Raises InvalidRequest."""
    if not percents and (samples, seconds) != (None, None):
        raise InvalidRequest(f"policy {policy!r} has each step's samples and seconds: leave the options out, or give --steps, too")
    return [{"weight": round(percent * 100), **given(samples=samples, min_s=seconds)} for percent in percents]


def _shadow(percent: float, samples: int, seconds: float | None) -> dict[str, Any]:
    return {"weight": round(percent * 100), "samples": samples, "min_s": min(_SHADOW_S if seconds is None else seconds, _SHADOW_S)}


def _agreement(text: str, output: str, may_differ: float | None) -> dict[str, Any]:
    kind, _, limit = text.partition(":")
    least = finite_number(limit, expected="a limit, such as same-space:0.98") if limit else None
    return {"kind": kind, "output": output, "limit": least, "may_differ": None if may_differ is None else may_differ / 100}


def present_step(rollout: Mapping[str, Any]) -> dict[str, Any]:
    """The step that the rollout is at, of the admin API's answer: its samples and time are waited for."""
    shadow: dict[str, Any] | None = rollout["shadow"] if rollout["phase"] == "shadow" else None
    step: dict[str, Any] = rollout["steps"][rollout["step"]]
    return shadow or step


def _percents_of(text: str) -> list[float]:
    expected = "a list of percents from 0.01 to 99.99, such as 1,5,25,50"
    return [percent(each, least=0.01, most=99.99, whole=text, expected=expected) for each in text.split(",")]


def _show(found: Any, output: Shape) -> None:
    print_found(found, output, lambda: _tabulate(listed(found)))


def _tabulate(rollouts: list[dict[str, Any]]) -> None:
    print_table(
        ("route", "from", "to", "phase", "step", "weight", "samples", "left", "why"),
        (
            (
                each["route"],
                _model(each["stable"], each["stable_version"]),
                _model(each["model"], each["version"]),
                each["phase"].replace("_", " ") + (", paused" if each["is_paused"] else ""),
                _step(each),
                _percents(each["weight"]),
                f"{each['step_samples']} of {present_step(each)['samples']}",
                _time_left(each),
                each["reason"],
            )
            for each in rollouts
        ),
    )


def _show_gates(rollout: dict[str, Any]) -> None:
    if rollout["gates"]:
        print_table(
            ("gate", rollout["model"], rollout["stable"], "evidence"),
            (
                (
                    gate["name"],
                    f"{gate['canary_bad']} of {gate['canary']}",
                    f"{gate['stable_bad']} of {gate['stable']}" if gate["stable"] else "",
                    f"{max(0.0, gate['log_evidence'] / gate['fails_at']):.0%} of what fails it",
                )
                for gate in rollout["gates"]
            ),
        )
    if rollout["doubt"]:
        remark(_holds(rollout))


def _holds(rollout: dict[str, Any]) -> str:
    return f"it holds at its step: {rollout['doubt']}; promote or abort it, or wait"


def _time_left(rollout: dict[str, Any]) -> str:
    """Render how long the present step takes yet: `inconclusive` where it lacks samples though its time is over."""
    present = present_step(rollout)
    if rollout["phase"] not in ("shadow", "canary") or rollout["step_samples"] >= present["samples"]:
        return ""
    is_over = time.time() > rollout["entered_s"] + present["min_s"]
    left_s = rollout["left_s"]
    told = "no requests" if left_s is None else f"{left_s:,.0f} s at this rate"
    return f"inconclusive, {told}" if is_over else told


def _step(rollout: dict[str, Any]) -> str:
    name, count = rollout["steps"][rollout["step"]]["name"], f"{rollout['step'] + 1} of {len(rollout['steps'])}"
    return f"{name}, {count}" if name else count


def _model(name: str, version: str) -> str:
    return f"{name}@{version}" if version else name


def _percents(weight: int) -> str:
    return f"{weight / 100:g} %"


def _at(event: dict[str, Any]) -> str:
    return datetime.fromtimestamp(event["at_s"], UTC).strftime("%Y-%m-%d %H:%M:%S")


def _event(event: dict[str, Any]) -> str:
    return f"{_at(event)} {_percents(event['weight'])}: {event['what']}"
