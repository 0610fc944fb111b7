"""`tidegate node`: runs the agent beside one Triton until a signal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import uvloop
from rich.console import Console

from control_plane.cli.common.serve_options import node_signature
from control_plane.host.leaving import LEAVE_WITHIN_S, end_within
from control_plane.host.memory.garbage import freeze_garbage_collector, garbage_collector_paused
from control_plane.settings import load_settings
from control_plane.telemetry.adapters.logs import configure_logging


def node(**options: object) -> None:
    """Start Triton on this host for gateways on others; every option is also a TIDEGATE_... variable."""
    settings = load_settings(options)
    configure_logging(settings.process.log_format)
    console = Console(stderr=settings.process.log_format == "json")
    started_s = time.monotonic()

    def announce(endpoints: Mapping[str, str]) -> None:
        console.print(f"[bold green]ready[/] in {time.monotonic() - started_s:.1f} s", highlight=False)
        for name, place in endpoints.items():
            console.print(f"  {name:<11} {place}", highlight=False)
        freeze_garbage_collector()

    async def run() -> None:
        # Imported here, as in `serve`.
        with garbage_collector_paused():
            from control_plane.app.node import Node

        await Node(settings).run(announce)
        end_within(LEAVE_WITHIN_S)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


# Typer reads the options from here.
node.__signature__ = node_signature()  # type: ignore[attr-defined]
