"""`tidegate jobs run`: runs jobs in a process of its own until a signal."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from control_plane.core.text.redaction import without_user
from control_plane.host.memory.garbage import garbage_collector_paused
from control_plane.settings import load_settings
from control_plane.telemetry.adapters.logs import configure_logging


def run(
    gateway: Annotated[
        str | None, typer.Option(help="Gateways that compute, http:// or https://HOST:PORT, with commas between several.")
    ] = None,
    state_url: Annotated[str | None, typer.Option(help="The gateways' Redis, redis://HOST:PORT.")] = None,
    at_once: Annotated[str | None, typer.Option(metavar="NUMBER", help="Most jobs that are computed for it at a time.")] = None,
    log_format: Annotated[str | None, typer.Option(help="console for people, json for log collectors.")] = None,
) -> None:
    """Run jobs beside the gateways, any number of times and on any host, until a signal.

    TIDEGATE_JOBS_URL names the broker, TIDEGATE_JOBS_SPOOL the folder that all share, TIDEGATE_API_KEY a key with the scope
    admin.
    """
    given = {"jobs_gateways": gateway, "state_url": state_url, "jobs_at_once": at_once, "log_format": log_format}
    settings = load_settings(given, flags={"jobs_gateways": "--gateway", "jobs_at_once": "--at-once"})
    configure_logging(settings.process.log_format)
    console = Console(stderr=settings.process.log_format == "json")

    def announce(gateways: list[str]) -> None:
        console.print(f"[bold green]running jobs[/] by {', '.join(map(without_user, gateways))}", highlight=False)

    async def work() -> None:
        # Imported here, as in `serve`.
        with garbage_collector_paused():
            from control_plane.app.job_worker import JobWorker

        await JobWorker(settings).run(announce)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())
