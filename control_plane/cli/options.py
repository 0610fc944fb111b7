"""Options that several commands share, and where a running `tidegate` is found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from control_plane.adapters.gateway_client import AdminClient
from control_plane.adapters.state_dir import read_endpoints
from control_plane.settings import load_settings

AdminUrlOption = Annotated[str | None, typer.Option("--admin-url", help="Admin API; found through the state folder by default.")]
StateUrlOption = Annotated[
    str | None, typer.Option("--state-url", help="Redis that holds the state; with a password rather TIDEGATE_STATE_URL. \\[SQLite]")
]
StateDirOption = Annotated[Path | None, typer.Option("--state-dir", help="State folder of the tidegate to talk to.")]


def endpoint(name: str, state_dir: Path | None, given: str | None) -> str:
    """The URL of `name` (http, admin): as given, else as the running `tidegate` wrote it, else on its default port."""
    if given:
        return given.rstrip("/")
    settings = load_settings({"state_dir": state_dir})
    defaults = {"http": settings.gateway.http_port, "admin": settings.admin.admin_port}
    found = read_endpoints(settings.process.state_dir)
    # On the Unix socket nobody has to trust or show a certificate.
    return found.get(f"{name}_socket") or found.get(name) or f"http://127.0.0.1:{defaults[name]}"


def admin_client(state_dir: Path | None, admin_url: str | None) -> AdminClient:
    """Of the running `tidegate`, with the key of TIDEGATE_API_KEY."""
    return AdminClient(endpoint("admin", state_dir, admin_url), api_key())


def api_key() -> str | None:
    """What TIDEGATE_API_KEY says."""
    key = load_settings().admin.api_key
    return None if key is None else key.get_secret_value()
