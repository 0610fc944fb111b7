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
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from control_plane.admin.connection import authorization
from control_plane.cli.clients.model import ModelClient
from control_plane.cli.common.options import StateDirOption, api_key, endpoint
from control_plane.cli.common.output import Shape, ShapeOption, print_found
from control_plane.cli.planning.profile_report import print_profile, remarks_on
from control_plane.core.errors import InvalidRequest, ObjectNotFound
from control_plane.profiling.adapters.grpc_client import GrpcModelClient
from control_plane.profiling.inputs import generation_for, request_for
from control_plane.profiling.profiler import measure
from control_plane.profiling.streams import measure_streams


class Protocol(StrEnum):
    """Protocol by which the requests are sent."""

    HTTP = "http"
    GRPC = "grpc"


class _Usual(NamedTuple):
    """Numbers of requests to send: in all, of each caller, and at most."""

    requests: int
    of_each: int
    most: int


_REQUESTS, _STREAMS = _Usual(200, 10, 100_000), _Usual(20, 2, 1_000)
_MOST_CALLERS = 256
"""Callers of one command, each a thread with a connection."""
_SHOWN = {Protocol.HTTP: "HTTP", Protocol.GRPC: "gRPC"}


def profile(
    model: Annotated[str, typer.Argument(help="The model, or ensemble, that gets the requests.")],
    requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_REQUESTS.most,
            help=f"How many to send in all. \\[{_REQUESTS.requests}, or {_REQUESTS.of_each} for each caller; "
            f"of a decoupled model {_STREAMS.requests}, or {_STREAMS.of_each}]",
        ),
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
    """Say where the time of a request goes: network, gateway, and queue and computation of each model in Triton; of a decoupled
    model, such as one that generates text, the time to the first response and between responses.

    The gateway tells the times of each request, and Triton the sums of all, by its statistics before and after.
    """
    place = endpoint(protocol, state_dir, url)
    with ExitStack() as opened, _advice(model):
        callers = [opened.enter_context(closing(_connected(protocol, place, model))) for _ in range(concurrency)]
        is_streamed = bool(callers[0].config().get("model_transaction_policy", {}).get("decoupled"))
        count = _count(requests, concurrency, _STREAMS if is_streamed else _REQUESTS)
        sent = islice(_encoded(callers[0], data, is_streamed=is_streamed), count + 1)
        found = (measure_streams if is_streamed else measure)(callers, model, sent, protocol=_SHOWN[protocol])
    print_found(asdict(found), output, lambda: print_profile(model, found))
    for remark in remarks_on(found):
        Console(stderr=True, soft_wrap=True).print(remark, highlight=False)


def _count(requests: int | None, concurrency: int, usual: _Usual) -> int:
    """How many requests to send. Raises InvalidRequest."""
    count = requests or max(usual.requests, usual.of_each * concurrency)
    if count < concurrency:
        raise InvalidRequest(f"--requests {count} is less than --concurrency {concurrency}: not all callers would ask")
    if count > usual.most:
        raise InvalidRequest(f"--requests {count}: of a decoupled model, whose answers are streams, at most {usual.most}")
    return count


def _connected(protocol: Protocol, url: str, model: str) -> ModelClient | GrpcModelClient:
    if protocol is Protocol.GRPC:
        return GrpcModelClient(url, model, authorization(api_key()))
    return ModelClient(url, model, api_key())


def _encoded(client: ModelClient | GrpcModelClient, data: Path | None, *, is_streamed: bool) -> Iterator[bytes]:
    """Requests without end: the one in a file, or made up, each another. Raises InvalidRequest."""
    encoded = client.encoded_stream if is_streamed else client.encoded
    if data is not None:
        return repeat(encoded(_read(data)))
    make, metadata, draw = generation_for if is_streamed else request_for, client.metadata(), random.SystemRandom()
    return (encoded(make(metadata, draw)) for _ in repeat(None))


@contextmanager
def _advice(model: str) -> Iterator[None]:
    """Add where to look to what says that a model is not there."""
    try:
        yield
    except ObjectNotFound as exc:
        raise ObjectNotFound(f"{exc}; `tidegate models show {model}` says whether it is there, and why it is not loaded") from exc


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise InvalidRequest(f"{path} is no infer request in JSON: {exc}") from exc
    if not isinstance(found, dict) or "inputs" not in found:
        raise InvalidRequest(f'{path} is no infer request: it needs "inputs", as in {{"inputs": [{{"name": ...}}]}}')
    return found
