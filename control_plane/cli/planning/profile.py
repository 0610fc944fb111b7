"""`tidegate profile`: says where the time of a model's requests goes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from enum import StrEnum
from itertools import islice, repeat
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from control_plane.admin.client import ModelClient, authorization
from control_plane.cli.common.options import StateDirOption, api_key, endpoint
from control_plane.cli.common.output import Shape, ShapeOption, print_found
from control_plane.core.errors import InvalidRequest, ObjectNotFound
from control_plane.profiling.adapters.grpc_client import GrpcModelClient
from control_plane.profiling.inputs import request_for
from control_plane.profiling.profiler import Profile, measure
from control_plane.profiling.stages import Stage


class Protocol(StrEnum):
    """Protocol by which the requests are sent."""

    HTTP = "http"
    GRPC = "grpc"


_REQUESTS, _REQUESTS_EACH, _MOST_REQUESTS = 200, 10, 100_000
_MOST_CALLERS = 256
"""Callers of one command, each a thread with a connection."""
_BUSY = 0.8
"""CPU seconds by second from which this process is what its threads wait for."""
_SHOWN = {Protocol.HTTP: "HTTP", Protocol.GRPC: "gRPC"}


def profile(
    model: Annotated[str, typer.Argument(help="The model, or ensemble, that gets the requests.")],
    requests: Annotated[
        int | None, typer.Option(min=1, max=_MOST_REQUESTS, help="How many to send in all. \\[200, or 10 for each caller]")
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(
            min=1,
            max=_MOST_CALLERS,
            help=f"Callers that ask at once, at most {_MOST_CALLERS}; each sends its next request after an answer.",
        ),
    ] = 1,
    data: Annotated[
        Path | None, typer.Option(help="File with one infer request in JSON, which is sent each time; made up by default, each another.")
    ] = None,
    protocol: Annotated[Protocol, typer.Option(help="Protocol of the data port that is asked.")] = Protocol.HTTP,
    url: Annotated[str | None, typer.Option(help="Gateway; found through the state folder by default.")] = None,
    state_dir: StateDirOption = None,
    output: ShapeOption = Shape.TABLE,
) -> None:
    """Say where the time of a request goes: network, gateway, and queue and computation of each model in Triton.

    The gateway tells the times of each request, and Triton the sums of all, by its statistics before and after.
    """
    count = requests or max(_REQUESTS, _REQUESTS_EACH * concurrency)
    if count < concurrency:
        raise InvalidRequest(f"--requests {count} is less than --concurrency {concurrency}: not all callers would ask")
    place = endpoint(protocol, state_dir, url)
    with ExitStack() as opened, _advice(model):
        callers = [opened.enter_context(closing(_connected(protocol, place, model))) for _ in range(concurrency)]
        own = None if data is None else callers[0].encoded(_read(data))
        sent = _made_up(callers[0]) if own is None else repeat(own)
        found = measure(callers, model, islice(sent, count + 1), protocol=_SHOWN[protocol])
    print_found(asdict(found), output, lambda: _print(model, found))
    for remark in _remarks(found):
        Console(stderr=True, soft_wrap=True).print(remark, highlight=False)


def _connected(protocol: Protocol, url: str, model: str) -> ModelClient | GrpcModelClient:
    if protocol is Protocol.GRPC:
        return GrpcModelClient(url, model, authorization(api_key()))
    return ModelClient(url, model, api_key())


def _made_up(client: ModelClient | GrpcModelClient) -> Iterator[bytes]:
    metadata, draw = client.metadata(), random.SystemRandom()
    while True:
        yield client.encoded(request_for(metadata, draw))


@contextmanager
def _advice(model: str) -> Iterator[None]:
    """Add where to look to what says that a model is not there."""
    try:
        yield
    except ObjectNotFound as exc:
        raise ObjectNotFound(f"{exc}; `tidegate models show {model}` says whether it is there, and why it is not loaded") from exc


def _remarks(found: Profile) -> Iterator[str]:
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


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise InvalidRequest(f"{path} is no infer request in JSON: {exc}") from exc
    if not isinstance(found, dict) or "inputs" not in found:
        raise InvalidRequest(f'{path} is no infer request: it needs "inputs", as in {{"inputs": [{{"name": ...}}]}}')
    return found


def _print(model: str, found: Profile) -> None:
    table = Table(f"a request of {model}", "ms", "p50", "p99", "%", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    total = Stage("all, at its client", found.total_ms, found.p50_ms, found.p99_ms)
    for stage in found.stages:
        table.add_row(*_row(stage, total))
    table.add_row(*_row(total, total), style="bold")
    if found.server is not None:
        table.add_row(*_row(found.server, total))
    if found.repeat_ms is not None:
        table.add_row(*_row(Stage("sent again: from the cache", found.repeat_ms), total))
    Console().print(table)
    told = f"{_callers(found)}, {found.requests_per_s:.1f} requests a second; -: nobody knows it of single requests"
    Console(soft_wrap=True).print(told, style="dim", highlight=False)


def _row(stage: Stage, total: Stage) -> list[str]:
    figures = ("-" if each is None else f"{each:.2f}" for each in (stage.ms, stage.p50_ms, stage.p99_ms))
    return [stage.name, *figures, f"{100 * stage.ms / max(total.ms, 1e-9):.0f}"]


def _callers(found: Profile) -> str:
    return "1 caller" if found.concurrency == 1 else f"{found.concurrency} callers at once"
