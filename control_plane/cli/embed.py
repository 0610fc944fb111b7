"""`tidegate embed`: embeds a text, or every line of a file, through the running gateway."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from control_plane.cli.clients.embeddings import EmbeddingClient
from control_plane.cli.common.options import StateDirOption, api_key, endpoint
from control_plane.cli.common.texts import read_texts
from control_plane.core.errors import InvalidRequest

_LINES_PER_REQUEST = 32
_SHOWN = 4


def embed(
    text: Annotated[str | None, typer.Argument(help="The text to embed.")] = None,
    file: Annotated[Path | None, typer.Option(help="Embed every line of this file that is not blank.")] = None,
    model: Annotated[str, typer.Option(help="The embedding ensemble to ask.")] = "text_embedding",
    url: Annotated[str | None, typer.Option(help="Gateway; found through the state folder by default.")] = None,
    state_dir: StateDirOption = None,
) -> None:
    """Turn text into an embedding and print its dimensions, first values and the time it took."""
    if (text is None) == (file is None):
        raise InvalidRequest('give one text, as in `tidegate embed "some text"`, or --file PATH')
    client = EmbeddingClient(endpoint("http", state_dir, url), api_key())
    started_s = time.perf_counter()
    if file is not None:
        count, first = _embed_lines(client, model, read_texts(file))
    else:
        count, first = 1, client.embed([text or ""], model)[0]
    elapsed_s = time.perf_counter() - started_s
    client.close()
    values = ", ".join(f"{value:.6f}" for value in first[:_SHOWN])
    texts = f"{count} texts, " if file is not None else ""
    Console(soft_wrap=True).print(f"{texts}{len(first)} dimensions: \\[{values}, ...] in {elapsed_s * 1000:.1f} ms", highlight=False)


def _embed_lines(client: EmbeddingClient, model: str, lines: list[str]) -> tuple[int, list[float]]:
    """Embed all lines; return their number and the first line's embedding."""
    first: list[float] = []
    for start in track(range(0, len(lines), _LINES_PER_REQUEST), description="embedding", console=Console(stderr=True)):
        embeddings = client.embed(lines[start : start + _LINES_PER_REQUEST], model)
        first = first or embeddings[0]
    return len(lines), first
