"""`tidegate serve`: runs Triton, the gateway and the admin API until a signal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import uvloop
from rich.console import Console

from control_plane.cli.common.serve_options import serve_signature
from control_plane.core.text.redaction import without_user
from control_plane.host.leaving import LEAVE_WITHIN_S, end_within
from control_plane.host.memory.garbage import freeze_garbage_collector, garbage_collector_paused
from control_plane.models.model_service import LoadFailure
from control_plane.settings import Settings, load_settings
from control_plane.telemetry.adapters.logs import configure_logging


def serve(**options: object) -> None:
    """Start Triton, load the models, and serve; every option is also a TIDEGATE_... variable."""
    settings = load_settings(options)
    configure_logging(settings.process.log_format)
    console = Console(stderr=settings.process.log_format == "json")
    started_s = time.monotonic()
    console.print(_opening_line(settings), highlight=False)

    def announce(endpoints: Mapping[str, str], failures: list[LoadFailure]) -> None:
        console.print(f"[bold green]ready[/] in {time.monotonic() - started_s:.1f} s", highlight=False)
        for name, url in endpoints.items():
            console.print(f"  {name:<11} {url}", highlight=False)
        for failure in failures:
            console.print(f"  [red]not loaded[/] {failure.name}: {failure.reason}", highlight=False, soft_wrap=True)
        # Only now: everything that lives as long as the process has been made, and is not worth scanning
        # again.
        freeze_garbage_collector()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings, announce))


# Typer reads the options from here.
serve.__signature__ = serve_signature()  # type: ignore[attr-defined]


async def _run(settings: Settings, announce: Callable[[Mapping[str, str], list[LoadFailure]], None]) -> None:
    # Imported here: `app` imports every adapter, which other commands and `--help` do not need.
    with garbage_collector_paused():
        from control_plane.app.gateway.application import App

    await App(settings).run(announce)
    end_within(LEAVE_WITHIN_S)


def _opening_line(settings: Settings) -> str:
    if settings.triton.triton_url:
        return f"attaching to the Triton at {without_user(settings.triton.triton_url)} ..."
    if settings.fleet.servers_file is not None:
        return f"attaching to the Tritons that {settings.fleet.servers_file} lists ..."
    if settings.fleet.triton_service:
        return f"attaching to the pods of the Kubernetes Service {settings.fleet.triton_service} ..."
    return "starting Triton and loading models ..."
