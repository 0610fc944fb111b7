"""`tidegate serve`: Triton, the gateway and the admin API, until a signal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from control_plane.host.garbage import keep_what_is_there
from control_plane.models.model_service import LoadFailure
from control_plane.settings import Settings, load_settings, without_user
from control_plane.telemetry.adapters.logs import configure_logging

_PORT_HELP = "0 chooses a free one"

# Options by subject, as `--help` shows them.
_ports = partial(typer.Option, rich_help_panel="Ports")
_models = partial(typer.Option, rich_help_panel="Models")
_triton = partial(typer.Option, rich_help_panel="Triton")
_fleet = partial(typer.Option, rich_help_panel="Fleet")
_access = partial(typer.Option, rich_help_panel="Access")
_state = partial(typer.Option, rich_help_panel="State and logs")
_cache = partial(typer.Option, rich_help_panel="Response cache")
_cpus = partial(typer.Option, rich_help_panel="CPUs")


def serve(
    host: Annotated[str | None, _ports(help="Address of the data and metrics ports. \\[127.0.0.1]")] = None,
    http_port: Annotated[int | None, _ports(help=f"{_PORT_HELP}. \\[8000]")] = None,
    grpc_port: Annotated[int | None, _ports(help=f"{_PORT_HELP}. \\[8001]")] = None,
    metrics_port: Annotated[int | None, _ports(help=f"{_PORT_HELP}. \\[8002]")] = None,
    admin_host: Annotated[str | None, _ports(help="Address of the admin API. \\[127.0.0.1]")] = None,
    admin_port: Annotated[int | None, _ports(help=f"{_PORT_HELP}. \\[8080]")] = None,
    model_repository: Annotated[list[Path] | None, _models(help="Folder of models; repeatable. \\[the project's two]")] = None,
    model_store: Annotated[
        list[str] | None, _models(help="Folder or s3://BUCKET/PREFIX that models are fetched from when wanted; repeatable.")
    ] = None,
    warm_dir: Annotated[Path | None, _models(help="Folder for what was fetched. \\[warm in the state folder]")] = None,
    warm_bytes: Annotated[str | None, _models(help="Bytes that it may hold, such as 200GiB. \\[64GiB]")] = None,
    load: Annotated[list[str] | None, _models(help="Model to load at start; repeatable, '*' for all. \\[text_embedding]")] = None,
    model_parameter: Annotated[
        list[str] | None, _models(help="MODEL:KEY=VALUE over a model's configuration, such as m:variant=int8; repeatable.")
    ] = None,
    build_models: Annotated[bool | None, _models(help="Build models' variants in the background. \\[no]")] = None,
    state_dir: Annotated[Path | None, _state(help="Folder for everything a run writes. \\[.state]")] = None,
    triton_url: Annotated[
        str | None,
        _triton(help="Attach to http://HOST:PORT instead; after it ?grpc_port=N and the like, with & between: metrics_port=N, pool=NAME."),
    ] = None,
    triton_transport: Annotated[
        str | None, _triton(help="How the embedded Triton is reached: unix, or tcp for measuring it straight. \\[unix]")
    ] = None,
    triton_user: Annotated[
        str | None, _triton(help="User as whom the embedded Triton and its models run; needs root. \\[this one]")
    ] = None,
    triton_arg: Annotated[
        list[str] | None, _triton(help="Further flag of tritonserver, such as --rate-limit=execution_count; repeatable.")
    ] = None,
    triton_env: Annotated[
        list[str] | None, _triton(help="Variable that the embedded Triton and its models get too, such as HF_HOME; repeatable.")
    ] = None,
    servers: Annotated[int | None, _fleet(help="Embedded Tritons; more than one load models where they are asked for. \\[1]")] = None,
    servers_file: Annotated[Path | None, _fleet(help="YAML list of Tritons that others run; read again when it changes.")] = None,
    pools: Annotated[str | None, _fleet(help="What each of --servers is for: names with commas between.")] = None,
    fleet_name: Annotated[str | None, _fleet(help="Of the fleet that gateways with one --state-url share.")] = None,
    memory_budget: Annotated[
        str | None, _fleet(help="Bytes of models that each server holds, such as 2GiB; turns on loading on demand. \\[no bound]")
    ] = None,
    http_socket: Annotated[Path | None, _ports(help="Unix socket for HTTP, beside the port.")] = None,
    grpc_socket: Annotated[Path | None, _ports(help="Unix socket for gRPC, beside the port.")] = None,
    tls_certificate: Annotated[Path | None, _access(help="PEM file; turns TLS on. Needs --tls-key.")] = None,
    tls_key: Annotated[Path | None, _access(help="PEM file of the private key.")] = None,
    tls_client_ca: Annotated[Path | None, _access(help="PEM file of authorities; clients must then show a certificate.")] = None,
    authentication: Annotated[bool | None, _access(help="Demand an API key or token of every caller. \\[no]")] = None,
    state_url: Annotated[str | None, _state(help="Redis for what must be remembered, shared by several gateways. \\[SQLite]")] = None,
    cache_bytes: Annotated[int | None, _cache(help="Bytes of answers kept in memory; 0 keeps none. \\[256 MiB]")] = None,
    cache_url: Annotated[str | None, _cache(help="Redis for kept answers; with a password rather TIDEGATE_CACHE_URL. \\[none]")] = None,
    request_log: Annotated[Path | None, _state(help="File that gets a JSON line for each request.")] = None,
    allow_shared_memory: Annotated[
        bool | None, _access("--allow-shared-memory/--no-shared-memory", help="Let local clients use shared memory. \\[no]")
    ] = None,
    workers: Annotated[int | None, _ports(help="Processes that answer the data ports. \\[1]")] = None,
    gateway_cpus: Annotated[str | None, _cpus(help="CPUs of the gateway's processes, such as 0 or 0-3.")] = None,
    triton_cpus: Annotated[str | None, _cpus(help="CPUs of the embedded Triton, such as 2-7.")] = None,
    model_cpus: Annotated[str | None, _cpus(help="CPUs of its models' instances, a range such as 3-7.")] = None,
    log_format: Annotated[str | None, _state(help="console or json. \\[console]")] = None,
    header_forward_pattern: Annotated[
        str | None, _triton(help="Names of request headers that go on to its models as parameters, such as ^x-tenant$. \\[none]")
    ] = None,
) -> None:
    """Start Triton, load the models, and serve; every option is also a TIDEGATE_... variable."""
    settings = load_settings(dict(locals()))
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
        keep_what_is_there()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings, announce))


async def _run(settings: Settings, announce: Callable[[Mapping[str, str], list[LoadFailure]], None]) -> None:
    from control_plane.app.application import App

    await App(settings).run(announce)


def _opening_line(settings: Settings) -> str:
    if settings.triton.triton_url:
        return f"attaching to the Triton at {without_user(settings.triton.triton_url)} ..."
    if settings.fleet.servers_file is not None:
        return f"attaching to the Tritons that {settings.fleet.servers_file} lists ..."
    return "starting Triton and loading models ..."
