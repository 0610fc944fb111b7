"""`tidegate jobs`: hands in asynchronous jobs and follows them, over the data port; dead ones over the admin API."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from rich.console import Console
from rich.progress import track

from control_plane.cli import job_worker
from control_plane.cli.clients.embeddings import embeddings_in
from control_plane.cli.clients.jobs import JobClient
from control_plane.cli.common.options import AdminUrlOption, StateDirOption, admin_client, api_key, endpoint
from control_plane.cli.common.output import Shape, ShapeOption, print_found
from control_plane.cli.common.printing import print_fields, print_table, remark
from control_plane.cli.common.texts import read_texts
from control_plane.core.errors import InvalidRequest, UpstreamUnavailable

app = typer.Typer(help="Hand in asynchronous jobs, and follow them.", no_args_is_help=True)
dead = typer.Typer(help="List, queue again or drop jobs whose every attempt has failed.", no_args_is_help=True)
app.add_typer(dead, name="dead")

_LINES_PER_JOB = 32
_WAIT_S = 30
_AGAIN_S = 1.0
_WITHOUT_ANSWER = ("failed", "cancelled", "expired", "dead")
_ENDED = ("succeeded", *_WITHOUT_ANSWER)
_COLUMNS = ("id", "state", "model", "class", "attempts", "submitted_at", "ended_at", "error")

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]
UrlOption = Annotated[str | None, typer.Option("--url", help="Gateway; found through the state folder by default.")]


@app.command()
def submit(
    model: Annotated[str, typer.Option(help="Model or route to compute with.")],
    file: Annotated[Path | None, typer.Option(help="Embed every line of this file that is not blank.")] = None,
    request: Annotated[Path | None, typer.Option(help="JSON body of one infer request, instead of texts.")] = None,
    out: Annotated[Path | None, typer.Option(help="Wait, and write the embeddings to this .npy file, one row per text.")] = None,
    economy: Annotated[bool, typer.Option("--economy", help="Let standard jobs go first.")] = False,
    input_from: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Body of one infer request in a folder or s3:// store that the gateway reads.")
    ] = None,
    output_to: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Folder, or s3:// prefix, into which the gateway writes each job's answer.")
    ] = None,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Tell this https:// URL of each job's end.")] = None,
    url: UrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Hand in jobs and print their ids, or wait for all of them and write their embeddings.

    Handed in again after an interruption, the same texts with the same options are the same jobs: nothing is computed
    twice, and what has failed is tried anew. What is in a file of --input-from is a new job each time.
    """
    if sum(given is not None for given in (file, request, input_from)) != 1 or (out is not None and file is None):
        raise InvalidRequest("give --file PATH of texts, with --out PATH if you like, or --request PATH or --input-from PLACE of one body")
    if out is not None:
        _require_writable(out)
    texts = read_texts(file) if file is not None else []
    bodies = [*_bodies(texts)] if texts else [_read(request) if request is not None else b""]
    options = {
        "tidegate_job_class": "economy" if economy else None,
        "tidegate_job_input": input_from,
        "tidegate_job_output": output_to,
        "tidegate_job_webhook": webhook,
    }
    started_s = time.perf_counter()
    with _connected(url, state_dir) as client:
        ids = [_submitted(client, model, body, options) for body in _with_progress(bodies, "handing in")]
        if out is None:
            for job_id in ids:
                typer.echo(job_id)
            return
        _write_embeddings(out, client, model, ids, len(texts))
    count, elapsed_s = len(texts), time.perf_counter() - started_s
    remark(f"{count} {'text' if count == 1 else 'texts'} in {elapsed_s:.1f} s, {count / elapsed_s:.0f} a second: {out}")


@app.command(name="list")
def list_jobs(
    state: Annotated[str | None, typer.Option(help="Only jobs in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many, the newest first.")] = 100,
    output: ShapeOption = Shape.TABLE,
    url: UrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """List your tenant's jobs, the newest first."""
    with _connected(url, state_dir) as client:
        found = client.list_jobs(state=state, limit=limit)
    rows = ([job.get(column) for column in _COLUMNS] for job in found)
    print_found(found, output, lambda: print_table(_COLUMNS, rows))


@app.command()
def show(job_id: IdArgument, output: ShapeOption = Shape.TABLE, url: UrlOption = None, state_dir: StateDirOption = None) -> None:
    """Show one job."""
    with _connected(url, state_dir) as client:
        found = client.show(job_id)
    print_found(found, output, lambda: print_fields((name, _as_text(value)) for name, value in found.items()))


@app.command()
def watch(job_id: IdArgument, url: UrlOption = None, state_dir: StateDirOption = None) -> None:
    """Tell how a job goes on until it has ended, and print its result; the exit status is 1 if it has none, or is an error."""
    with _connected(url, state_dir) as client:
        found = _watched(client, job_id)
        if "result" in found:
            typer.echo(client.result(job_id), nl=sys.stdout.isatty())
    if found["state"] != "succeeded":
        raise InvalidRequest(f"job {job_id} is {found['state']}" + (f": {found['error']}" if "error" in found else ""))


@app.command()
def cancel(job_id: IdArgument, url: UrlOption = None, state_dir: StateDirOption = None) -> None:
    """Cancel a job, also one that runs; one that has ended stays as it is."""
    with _connected(url, state_dir) as client:
        remark(f"job {job_id} is {client.cancel(job_id)['state']}")


@dead.command(name="list")
def list_dead(output: ShapeOption = Shape.TABLE, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """List the dead jobs of all tenants."""
    columns = ("id", "tenant", "model", "attempts", "ended_at", "error")
    found = admin_client(state_dir, admin_url).ask_all("dead-jobs")
    print_found(found, output, lambda: print_table(columns, ([job[column] for column in columns] for job in found)))


@dead.command()
def requeue(job_id: IdArgument, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Queue a dead job anew, with all its attempts and all its time before it."""
    admin_client(state_dir, admin_url).ask("POST", "dead-jobs", job_id, "requeue")
    remark(f"job {job_id} is queued again")


@dead.command()
def drop(job_id: IdArgument, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Remove a dead job, with its body."""
    admin_client(state_dir, admin_url).ask("DELETE", "dead-jobs", job_id)
    remark(f"job {job_id} is removed")


app.command(name="run")(job_worker.run)


def _connected(url: str | None, state_dir: Path | None) -> closing[JobClient]:
    return closing(JobClient(endpoint("http", state_dir, url), api_key()))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be read: {exc.strerror}") from exc


def _bodies(lines: list[str]) -> Iterator[bytes]:
    """The bodies of infer requests for texts."""
    for start in range(0, len(lines), _LINES_PER_JOB):
        texts = lines[start : start + _LINES_PER_JOB]
        tensor = {"name": "TEXT", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}
        yield json.dumps({"inputs": [tensor], "outputs": [{"name": "EMBEDDING"}]}).encode()


def _submitted(client: JobClient, model: str, body: bytes, options: dict[str, str | None]) -> str:
    """Hand in one job, and return its id: that of an earlier run, or a new one where that run's ended without an answer."""
    if options["tidegate_job_input"] is not None:
        return str(client.submit(model, body, key=uuid4().hex, **options)["id"])  # what is in the file may be another by now
    key = _key(model, body, options)
    while (job := client.submit(model, body, key=key, **options))["state"] in _WITHOUT_ANSWER:
        key = _key(model, body, options, job["id"])
    return str(job["id"])


def _key(model: str, body: bytes, options: dict[str, str | None], *more: str) -> str:
    """Idempotency key that follows from what is computed and how, so that a second run finds the jobs of the first."""
    given = (f"{name}: {value}" for name, value in options.items() if value is not None)
    return sha256(b"\0".join((model.encode(), body, *(text.encode() for text in (*given, *more))))).hexdigest()


def _with_progress(items: list[Any], what: str) -> Iterator[Any]:
    yield from track(items, description=what, console=Console(stderr=True))


def _as_text(value: Any) -> Any:
    """Return a field of a job as people read it: how far a delivery is in a line, and all else as it is."""
    if not isinstance(value, dict):
        return value
    attempts, next_at = value["attempts"], value.get("next_at")
    parts = (
        value.get("url"),
        value["state"],
        attempts and f"{attempts} {'attempt' if attempts == 1 else 'attempts'}",
        next_at and f"next at {next_at}",
        value.get("error"),
    )
    return ", ".join(str(part) for part in parts if part)


def _watched(client: JobClient, job_id: str) -> dict[str, Any]:
    """Tell each state of a job until its end, also where the gateway that tells of it ends, and return the job then."""
    told = ""
    while True:
        has_told = False
        try:
            for found in client.events(job_id):
                has_told = True
                if found["state"] != told:
                    told = found["state"]
                    remark(f"job {job_id} is {told}")
                if told in _ENDED:
                    return found
        except InvalidRequest:  # as many as may be are watched already
            return _ended(client, job_id)
        except UpstreamUnavailable:
            if not has_told:
                raise
        time.sleep(_AGAIN_S)


def _ended(client: JobClient, job_id: str) -> dict[str, Any]:
    while (found := client.show(job_id, wait_s=_WAIT_S))["state"] not in _ENDED:
        pass
    return found


def _embeddings(client: JobClient, job_id: str, model: str, texts: int) -> list[list[float]]:
    """The embeddings that a job has computed, once it has. Raises InvalidRequest: it has none."""
    found = _ended(client, job_id)
    if found["state"] != "succeeded":
        raise InvalidRequest(f"job {job_id} is {found['state']}: {found.get('error') or _error_in(client.result(job_id))}")
    result = client.result(job_id)
    try:
        answer = json.loads(result)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or "error" in answer:  # such as of a store that does not answer
        raise InvalidRequest(f"the result of job {job_id} cannot be read: {_error_in(result)}")
    return embeddings_in(answer, model, texts)


def _error_in(result: str) -> str:
    """Return the text of an answer that is an error."""
    try:
        return str(json.loads(result)["error"])
    except (ValueError, KeyError, TypeError):
        return result


def _require_writable(path: Path) -> None:
    """Raise InvalidRequest where the embeddings could not be written, before anything is computed."""
    if not path.parent.is_dir():
        raise InvalidRequest(f"--out {path} cannot be written: there is no folder {path.parent}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidRequest(f"--out {path} cannot be written: it must name a file that you may write")


def _write_embeddings(path: Path, client: JobClient, model: str, ids: list[str], texts: int) -> None:
    """Wait for the jobs of so many texts and write their embeddings, one row per text. Raises InvalidRequest."""
    import numpy as np

    parts = [  # of 4 bytes a number, where Python has 32
        np.array(_embeddings(client, job_id, model, min(_LINES_PER_JOB, texts - start)), dtype=np.float32)
        for start, job_id in zip(range(0, texts, _LINES_PER_JOB), _with_progress(ids, "computing"), strict=True)
    ]
    if len(widths := sorted({part.shape[1] for part in parts})) > 1:
        raise InvalidRequest(f"model {model!r} has answered with embeddings of {' and '.join(map(str, widths))} numbers: not of one model")
    try:
        with path.open("wb") as file:
            np.save(file, np.concatenate(parts))
    except OSError as exc:
        raise InvalidRequest(f"--out {path} cannot be written: {exc.strerror}") from exc
