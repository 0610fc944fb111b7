"""Options that several commands share, and where a running `tidegate` and its store are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from control_plane.admin.client import AdminClient
from control_plane.cli.printing import remark
from control_plane.core.errors import InvalidRequest
from control_plane.host.state_dir import read_endpoints, running_state_dirs
from control_plane.settings import Settings, load_settings
from control_plane.storage.store_record import read_store_record, record_of

AdminUrlOption = Annotated[str | None, typer.Option("--admin-url", help="URL of the admin API, where it is not found by itself.")]
StateUrlOption = Annotated[
    str | None,
    typer.Option("--state-url", help="Redis that holds the state; with a password rather TIDEGATE_STATE_URL. \\[the server's own store]"),
]
StateDirOption = Annotated[
    Path | None, typer.Option("--state-dir", help="State folder of the tidegate that is meant. \\[the one that you run]")
]

_TELL_WHICH = "say which with --state-dir or TIDEGATE_STATE_DIR"


def endpoint(name: str, state_dir: Path | None, given: str | None) -> str:
    """The URL of `name` (http, admin): as given, else of the tidegate that this user runs, else on its default port.

    Raises InvalidRequest: this user runs several.
    """
    if given:
        return given.rstrip("/")
    settings = located(state_dir)
    defaults = {"http": settings.gateway.http_port, "admin": settings.admin.admin_port}
    found = read_endpoints(settings.process.state_dir)
    # On the Unix socket nobody has to trust or show a certificate.
    url = found.get(f"{name}_socket") or found.get(name)
    if url is None:
        url = f"http://127.0.0.1:{defaults[name]}"
        where = f" in {settings.process.state_dir}" if _is_told(settings) else ""
        remark(f"you run no tidegate{where}; asking {url}")
    return url


def located(state_dir: Path | None, state_url: str | None = None) -> Settings:
    """The settings, with the state folder that is meant: as given, else of the tidegate that this user runs, else the usual one.

    Raises InvalidRequest: this user runs several. StartupError: a setting is wrong.
    """
    settings = load_settings({"state_dir": state_dir, "state_url": state_url})
    usual = settings.process.state_dir
    if _is_told(settings) or read_endpoints(usual):
        return settings
    running = running_state_dirs()
    if len(running) > 1 and state_url is None:  # with it no folder is needed
        raise InvalidRequest(f"you run {len(running)} tidegates; {_TELL_WHICH}: {', '.join(map(str, running))}")
    if len(running) != 1:
        return settings
    return replace(settings, process=settings.process.model_copy(update={"state_dir": running[0]}))


def stores_located(state_dir: Path | None, state_url: str | None) -> Settings:
    """As `located`, with the store that the tidegate of that folder uses where no other is given.

    Raises InvalidRequest: it can only be reached with what is written nowhere.
    """
    settings = located(state_dir, state_url)
    folder, given = settings.process.state_dir, settings.state.state_url
    record = read_store_record(folder)
    if record is None:
        return settings
    if given is not None:
        if read_endpoints(folder) and record.place != record_of(given).place:
            remark(f"the tidegate that runs in {folder} keeps its state elsewhere: in {record}")
        return settings
    if not record.is_whole:
        raise InvalidRequest(
            f"the tidegate of {folder} keeps its state in {record.place}, for which it takes more than is written down: "
            "give the same TIDEGATE_STATE_URL as it has (or --state-url)"
        )
    if not record.place:
        return settings
    return replace(settings, state=settings.state.model_copy(update={"state_url": SecretStr(record.place)}))


def require_state(settings: Settings) -> None:
    """Raises InvalidRequest: nobody has kept any state there."""
    from control_plane.app.stores import holds_state

    if not holds_state(settings.state.state_url, settings.process.state_dir):
        raise InvalidRequest(
            f"no tidegate has kept any state in {settings.process.state_dir}; {_TELL_WHICH} folder, or with --state-url which Redis"
        )


def admin_client(state_dir: Path | None, admin_url: str | None) -> AdminClient:
    """Of the running `tidegate`, with the key of TIDEGATE_API_KEY."""
    return AdminClient(endpoint("admin", state_dir, admin_url), api_key())


def api_key() -> str | None:
    """What TIDEGATE_API_KEY says."""
    key = load_settings().admin.api_key
    return None if key is None else key.get_secret_value()


def _is_told(settings: Settings) -> bool:
    """Whether the user says which state folder is meant."""
    return "state_dir" in settings.process.model_fields_set
