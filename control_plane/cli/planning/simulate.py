"""`tidegate simulate`: replays a trace against a simulated fleet, to plan its capacity; starts no servers.

The decisions are those of `tidegate serve` (`fleet/simulation`), so that the plan holds for the real fleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.console import Console

from control_plane.cli.common.output import Shape, ShapeOption, print_found
from control_plane.cli.common.printing import print_table, remark
from control_plane.core.errors import InvalidRequest
from control_plane.fleet.simulation.capacity import Trial, autoscaled_servers, fewest_servers
from control_plane.fleet.simulation.engine import simulate as run_simulation
from control_plane.fleet.simulation.generators import model_names, poisson, zipf
from control_plane.fleet.simulation.production_router import ProductionRouter
from control_plane.fleet.simulation.traces import parse_costs, parse_requests
from control_plane.fleet.simulation.workload import FleetShape, ModelCost, Request, Workload

MAX_SERVERS = 1024
"""Largest fleet that `--p99-ms` tries."""

_MAX_REQUESTS = 5_000_000
_BYTES = TypeAdapter(ByteSize)
_QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
_COLUMNS = ("servers", "loads", "unloads", "p50 ms", "p99 ms", "p99.9 ms", "refused", "busy")


def simulate(
    trace: Annotated[
        Path | None, typer.Option(help="CSV with the header seconds,model and, if you like, service_ms. \\[drawn requests]")
    ] = None,
    models: Annotated[int, typer.Option(min=1, max=1_000_000, help="Without a trace: models.")] = 100,
    zipf: Annotated[float, typer.Option(min=0, max=10, help="Without a trace: popularity is 1 / rank to the power of this.")] = 1.0,
    requests: Annotated[int, typer.Option(min=1, max=_MAX_REQUESTS, help="Without a trace: requests.")] = 20_000,
    rate: Annotated[float, typer.Option(min=0.001, help="Without a trace: requests per second.")] = 200.0,
    servers: Annotated[int, typer.Option(min=1, max=MAX_SERVERS, help="Servers; with --p99-ms they are searched for.")] = 8,
    memory_budget: Annotated[str, typer.Option(help="Memory for models on each server.")] = "2GiB",
    parallel: Annotated[int, typer.Option(min=1, max=1024, help="Requests that a server works on at a time.")] = 1,
    serves_while_loading: Annotated[bool, typer.Option(help="Whether a server starts requests while it loads a model.")] = True,
    model_bytes: Annotated[str, typer.Option(help="Memory that a model takes.")] = "200MiB",
    load_ms: Annotated[float, typer.Option(min=0, help="Time to load a model.")] = 1000.0,
    service_ms: Annotated[float, typer.Option(min=0.001, help="Time that a server works on a request.")] = 10.0,
    costs: Annotated[Path | None, typer.Option(help="CSV with the header model,bytes,load_ms, where models differ.")] = None,
    p99_ms: Annotated[float | None, typer.Option(min=0.01, help="Find the fewest servers that reach this p99 latency.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random requests and choices.")] = 0,
    output: ShapeOption = Shape.TABLE,
) -> None:
    """Say how a fleet would serve a trace: loads, latencies, refusals; with --p99-ms how many servers it
    takes.

    Runs the decisions of `tidegate serve` against simulated servers, which start empty; what each model costs
    is known.
    """
    drawn = _Drawn(models, zipf, requests, rate)
    usual = ModelCost(_bytes("--model-bytes", model_bytes), load_ms / 1000)
    asked = _requests(trace, drawn, service_ms / 1000, _random(seed))
    workload = Workload(asked, _costs(costs, usual, asked))
    shape = FleetShape(servers, _bytes("--memory-budget", memory_budget), parallel, serves_while_loading)
    _check(workload, shape)
    enough: int | None = servers
    with Console(stderr=True).status("simulating"):
        if p99_ms is None:
            tried = [Trial(servers, run_simulation(workload, shape, ProductionRouter(_random(seed))), is_enough=True)]
        else:
            enough, tried = fewest_servers(workload, shape, lambda: ProductionRouter(_random(seed)), p99_s=p99_ms / 1000, most=MAX_SERVERS)
    plan = _plan(tried, workload, shape, enough)
    print_found(plan, output, lambda: _print(plan))
    if p99_ms is not None:
        _conclude(enough, tried, p99_ms, output)


def _random(seed: int) -> Random:
    return Random(seed)  # noqa: S311


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Parameters of the random workload that stands in for a trace."""

    models: int
    exponent: float
    requests: int
    rate: float


def _requests(trace: Path | None, drawn: _Drawn, service_s: float, random: Random) -> list[Request]:
    if trace is None:
        names = zipf(random, model_names(drawn.models), drawn.requests, drawn.exponent)
        return poisson(random, names, drawn.rate, service_s)
    try:
        return parse_requests(_lines(trace), service_s)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{trace}: {exc}") from exc


def _costs(path: Path | None, usual: ModelCost, requests: list[Request]) -> dict[str, ModelCost]:
    own = {}
    if path is not None:
        try:
            own = parse_costs(_lines(path), usual)
        except InvalidRequest as exc:
            raise InvalidRequest(f"{path}: {exc}") from exc
    return {model: own.get(model, usual) for model in dict.fromkeys(request.model for request in requests)}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as exc:
        raise InvalidRequest(f"it cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"it cannot be read as UTF-8 text: byte {exc.start} is none of it") from exc


def _bytes(option: str, text: str) -> int:
    try:
        size = int(_BYTES.validate_python(text))
    except ValidationError:
        size = 0
    if size <= 0:
        raise InvalidRequest(f"{option} {text}: write a size such as 2GiB or 500MB")
    return size


def _check(workload: Workload, shape: FleetShape) -> None:
    largest = max(workload.models, key=lambda name: workload.models[name].resident_bytes)
    if workload.models[largest].resident_bytes > shape.budget_bytes:
        size = ByteSize(workload.models[largest].resident_bytes).human_readable()
        budget = ByteSize(shape.budget_bytes).human_readable()
        raise InvalidRequest(f"model {largest} takes {size} and a server has {budget} for models: give more with --memory-budget")


def _plan(tried: list[Trial], workload: Workload, shape: FleetShape, enough: int | None) -> dict[str, Any]:
    """Return the result for programs; `servers` is None where no number of them is enough."""
    wanted = sorted(autoscaled_servers(workload, shape.parallel))
    return {
        "requests": len(workload.requests),
        "models": len(workload.models),
        "seconds": workload.requests[-1].at_s,
        "servers": enough,
        "autoscaled_servers": {"median": wanted[len(wanted) // 2], "most": wanted[-1]},
        "trials": [_trial(trial, workload, shape) for trial in tried],
    }


def _trial(trial: Trial, workload: Workload, shape: FleetShape) -> dict[str, Any]:
    outcome = trial.outcome
    latencies = {f"{name}_ms": 1000 * outcome.quantile_s(part) if outcome.answered else None for name, part in _QUANTILES.items()}
    could_s = workload.requests[-1].at_s * trial.servers * shape.parallel
    return {
        "servers": trial.servers,
        "loads": outcome.loads,
        "unloads": outcome.evictions,
        **latencies,
        "refused": outcome.refused,
        "busy": sum(request.service_s for request in workload.requests) / could_s if could_s else None,
    }


def _print(plan: Mapping[str, Any]) -> None:
    print_table(_COLUMNS, map(_row, plan["trials"]))
    remark(f"{plan['requests']:,} requests for {plan['models']:,} models in {plan['seconds']:,.0f} s")
    wanted = plan["autoscaled_servers"]
    remark(
        f"an autoscaler of deploy/kubernetes would keep {wanted['median']} of them as a rule and {wanted['most']} at most, "
        "by the work alone"
    )


def _row(trial: Mapping[str, Any]) -> tuple[object, ...]:
    latencies = (None if (each := trial[f"{name}_ms"]) is None else f"{each:,.1f}" for name in _QUANTILES)
    busy = None if trial["busy"] is None else f"{trial['busy']:.0%}"
    return trial["servers"], f"{trial['loads']:,}", f"{trial['unloads']:,}", *latencies, f"{trial['refused']:,}", busy


def _conclude(enough: int | None, tried: list[Trial], p99_ms: float, output: Shape) -> None:
    if enough is None:
        part = max(trial.outcome.part_within(p99_ms / 1000) for trial in tried)
        raise InvalidRequest(
            f"no number of servers up to {MAX_SERVERS} answers 99 % of these requests within {p99_ms:g} ms; the best answers {part:.1%}. "
            "The first request for a model waits for its load: try a longer trace, a shorter load or a higher limit"
        )
    if output is Shape.TABLE:
        Console().print(f"\n{enough} {'server' if enough == 1 else 'servers'} for p99 {p99_ms:g} ms", highlight=False, style="bold")
