"""The options of `tidegate serve` and `tidegate node`, made from the settings: name, type, default and meaning are
written there only.

Used by `serve` and `node`. A setting that is in no panel here has a `TIDEGATE_` variable and no option.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import ByteSize
from pydantic.fields import FieldInfo

from control_plane.settings import PROJECT_ROOT, fields_of_settings

_PANELS: Mapping[str, Sequence[str]] = {
    "Ports": (
        "host",
        "http_port",
        "grpc_port",
        "metrics_port",
        "admin_host",
        "admin_port",
        "http_socket",
        "grpc_socket",
        "workers",
    ),
    "Models": (
        "model_repository",
        "model_store",
        "warm_dir",
        "warm_bytes",
        "load",
        "model_parameter",
        "build_models",
    ),
    "State and logs": (
        "state_dir",
        "state_url",
        "state_url_file",
        "events_url",
        "events_url_file",
        "request_log",
        "log_format",
        "otlp_endpoint",
    ),
    "Triton": (
        "triton_url",
        "triton_ca",
        "triton_certificate",
        "triton_key",
        "triton_header_file",
        "tritonserver",
        "triton_transport",
        "triton_user",
        "triton_arg",
        "triton_env",
        "header_forward_pattern",
    ),
    "Nodes": ("node_secret_file", "node_ca", "node_certificate", "node_key"),
    "Fleet": (
        "servers",
        "servers_file",
        "triton_service",
        "kubernetes_lease",
        "model_resources",
        "pools",
        "fleet_name",
        "memory_budget",
        "hedging",
    ),
    "Regions": ("region", "regions_file"),
    "Access": (
        *("tls_certificate", "tls_key", "tls_client_ca", "admin_tls_cert", "admin_tls_key", "admin_tls_client_ca"),
        *("authentication", "allow_shared_memory"),
    ),
    "Response cache": ("cache_bytes", "cache_url", "cache_url_file"),
    "Stop": ("drain_pause_s", "drain_timeout_s"),
    "CPUs": ("gateway_cpus", "triton_cpus", "model_cpus"),
}
"""Settings that have an option, by the panel of `--help` that shows it."""

_NODE_PANELS: Mapping[str, Sequence[str]] = {
    "Gateways": ("node_host", "node_port", "node_secret_file", "node_certificate", "node_key", "node_ca"),
    "Models": ("model_repository", "model_store", "warm_dir", "warm_bytes", "model_parameter"),
    "Triton": (
        "node_triton_host",
        "node_triton_http_port",
        "node_triton_grpc_port",
        "node_triton_metrics_port",
        "attach",
        "attach_secret_file",
        "attach_image",
        "tritonserver",
        "triton_user",
        "triton_arg",
        "triton_env",
        "header_forward_pattern",
    ),
    "State and logs": ("state_dir", "log_format"),
    "CPUs": ("triton_cpus", "model_cpus"),
}

_REPEATABLE = frozenset(("model_repository", "model_store", "load", "model_parameter", "triton_arg", "triton_env"))
"""Options that may be given several times. Their values may have commas, at which only variables are split."""

_SWITCHES = {"allow_shared_memory": ("--allow-shared-memory/--no-shared-memory",)}
"""Names of switches whose own would be too long for a terminal of 80 columns."""

_SENTENCE_END = re.compile(r"(?<=\.) +(?=[A-Z])")
_IS_BYTES = re.compile(r"_bytes$|^memory_budget$")


def serve_signature() -> Signature:
    """Parameters for Typer, one for each option; an option that is not given is None."""
    return Signature(list(_parameters(_PANELS)))


def node_signature() -> Signature:
    """Parameters of `tidegate node`, as `serve_signature`."""
    return Signature(list(_parameters(_NODE_PANELS)))


def _parameters(panels: Mapping[str, Sequence[str]]) -> Iterator[Parameter]:
    fields = fields_of_settings()
    for panel, names in panels.items():
        for name in names:
            field = fields[name]
            option = typer.Option(
                *_SWITCHES.get(name, ()), rich_help_panel=panel, help=_help(name, field), show_default=False, metavar=_metavar(name, field)
            )
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[_type(name, field), option])


def _type(name: str, field: FieldInfo) -> Any:
    """The option's type for Typer. Values are parsed by the settings, with messages of their own, so most are text here."""
    if name in _REPEATABLE:
        return list[str] | None
    return bool | None if field.annotation is bool else str | None


def _metavar(name: str, field: FieldInfo) -> str | None:
    kinds = {field.annotation, *get_args(field.annotation)}
    if bool in kinds:
        return None
    if _IS_BYTES.search(name):
        return "BYTES"
    return "NUMBER" if field.annotation is int else "SECONDS" if float in kinds else "PATH" if Path in kinds else "TEXT"


def _help(name: str, field: FieldInfo) -> str:
    """The first sentence of the setting's description, whether the option may be repeated, and the default."""
    assert field.description is not None, f"the setting {name} has no description"
    said = [_SENTENCE_END.split(" ".join(field.description.split()))[0].replace("`", "")]
    if name in _REPEATABLE:
        said.append("Repeatable.")
    if default := _default_text(name, field):
        said.append(f"[{default}]")
    return " ".join(said).replace("[", "\\[")


def _default_text(name: str, field: FieldInfo) -> str:
    """The default as a user would write it; empty where nothing is the default."""
    default = field.get_default(call_default_factory=True)
    if isinstance(default, bool):
        return "yes" if default else "no"
    if default is not None and _IS_BYTES.search(name):
        return ByteSize(default).human_readable().replace(".0", "")
    if isinstance(default, list | tuple):
        return ", ".join(map(_path_text, default))
    return "" if default is None or default == {} else _path_text(default)


def _path_text(value: object) -> str:
    """A path below the project as the user sees it from there; anything else as text."""
    is_ours = isinstance(value, Path) and value.is_relative_to(PROJECT_ROOT)
    return str(value.relative_to(PROJECT_ROOT)) if is_ours and isinstance(value, Path) else str(value)
