"""`tidegate profile`: says where the time of a model's requests goes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
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


class Protocol(StrEnum):
    """Protocol by which the requests are sent."""

    HTTP = "http"
    GRPC = "grpc"


_SHOWN = {Protocol.HTTP: "HTTP", Protocol.GRPC: "gRPC"}


def profile(
    model: Annotated[str, typer.Argument(help="The model, or ensemble, that gets the requests.")],
    requests: Annotated[int, typer.Option(min=1, max=100_000, help="How many to send, one after the other.")] = 200,
    data: Annotated[
        Path | None, typer.Option(help="File with one infer request in JSON, which is sent each time; made up by default, each another.")
    ] = None,
    protocol: Annotated[Protocol, typer.Option(help="Protocol of the data port that is asked.")] = Protocol.HTTP,
    url: Annotated[str | None, typer.Option(help="Gateway; found through the state folder by default.")] = None,
    state_dir: StateDirOption = None,
    output: ShapeOption = Shape.TABLE,
) -> None:
    """Say where the time of a request goes: network, gateway, and queue and computation of each model in Triton.

    Sends requests one after the other, and reads Triton's statistics before and after.
    """
    with closing(_connected(protocol, endpoint(protocol, state_dir, url), model)) as client, _advice(model):
        own = None if data is None else client.encoded(_read(data))
        sent = _made_up(client) if own is None else repeat(own)
        found = measure(client, model, islice(sent, requests + 1), protocol=_SHOWN[protocol])
    print_found(asdict(found), output, lambda: _print(model, found))
    if remark := _remark(found):
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


def _remark(found: Profile) -> str:
    """Return a warning where Triton computed more or fewer requests than were sent; empty otherwise."""
    if found.computed > found.requests:
        return f"others had {found.computed - found.requests} requests computed meanwhile: Triton's parts are means over theirs, too"
    if found.computed < found.requests:
        return (
            f"{found.requests - found.computed} of {found.requests} answers came from the cache, or from before the model was loaded "
            "anew, and Triton's parts are of the others"
        )
    return ""


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise InvalidRequest(f"{path} is no infer request in JSON: {exc}") from exc
    if not isinstance(found, dict) or "inputs" not in found:
        raise InvalidRequest(f'{path} is no infer request: it needs "inputs", as in {{"inputs": [{{"name": ...}}]}}')
    return found


def _print(model: str, found: Profile) -> None:
    table = Table("a request of " + model, "ms", "%", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for stage in found.stages:
        table.add_row(stage.name, f"{stage.ms:.2f}", f"{100 * stage.ms / max(found.total_ms, 1e-9):.0f}")
    table.add_row("all, at its client", f"{found.total_ms:.2f}", "100", style="bold")
    if found.repeat_ms is not None:
        table.add_row("sent again: from the cache", f"{found.repeat_ms:.2f}", f"{100 * found.repeat_ms / max(found.total_ms, 1e-9):.0f}")
    Console().print(table)
