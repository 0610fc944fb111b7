"""Options that several commands share, and the discovery of a running `tidegate` and its store.

A running `tidegate` writes its URLs to `endpoints.json` in its state folder, and its store's place beside it.
"""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from control_plane.admin.client import AdminClient
from control_plane.audit.domain.entry import Actor
from control_plane.cli.common.printing import remark
from control_plane.core.errors import InvalidRequest
from control_plane.host.state_dir import read_endpoints, running_state_dirs
from control_plane.settings import Settings, load_settings
from control_plane.storage.store_record import read_store_record, record_of

AdminUrlOption = Annotated[str | None, typer.Option("--admin-url", help="URL of the admin API. \\[found through the state folder]")]
StateUrlOption = Annotated[
    str | None,
    typer.Option("--state-url", help="Redis that holds the state; if it has a password, use TIDEGATE_STATE_URL. \\[the server's store]"),
]
StateDirOption = Annotated[
    Path | None, typer.Option("--state-dir", help="State folder of the tidegate to use. \\[that of the one you run]")
]

ReasonOption = Annotated[str | None, typer.Option("--reason", help="Why, for the audit log.")]

_TELL_WHICH = "say which with --state-dir or TIDEGATE_STATE_DIR"


def endpoint(name: str, state_dir: Path | None, given: str | None) -> str:
    """Return the URL of `name` (http, grpc, admin): the given one, else that of the tidegate this user runs, else
    the default.

    Raises:
        InvalidRequest: this user runs several, and does not say which is meant; or none in the folder that was named.
    """
    if given:
        return given.rstrip("/")
    settings = locate_settings(state_dir)
    group = settings.admin if name == "admin" else settings.gateway
    found = read_endpoints(settings.process.state_dir)
    # The Unix socket is preferred, since it never uses TLS: the command needs neither a CA nor a client
    # certificate.
    url = found.get(f"{name}_socket") or found.get(name)
    if url is None:
        url = f"http://127.0.0.1:{getattr(group, f'{name}_port')}"
        where = f" in {settings.process.state_dir}" if _names_state_dir(settings) else ""
        if where and f"{name}_port" not in group.model_fields_set:
            # Whoever has the usual port is another one: it would be changed instead, and shown the caller's key.
            raise InvalidRequest(f"you run no tidegate{where}; start it, or give the URL of another one")
        remark(f"you run no tidegate{where}; asking {url}")
    # Of gRPC's port the address is written without a scheme, as its clients want it; both data ports have TLS or none has.
    return url if ":/" in url or url.startswith("unix:") else f"{found['http'].partition(':')[0]}://{url}"


def locate_settings(
    state_dir: Path | None, state_url: str | None = None, *, running: Callable[[], list[Path]] = running_state_dirs
) -> Settings:
    """Load the settings; the state folder is the given one, else that of the tidegate this user runs (by
    `running`), else the default.

    Raises:
        InvalidRequest: this user runs several, and does not say which is meant.
        StartupError: a setting is wrong.
    """
    settings = load_settings({"state_dir": state_dir, "state_url": state_url})
    usual = settings.process.state_dir
    if _names_state_dir(settings) or read_endpoints(usual):
        return settings
    found = running()
    if len(found) > 1:  # a node has neither an admin API nor a store
        found = [folder for folder in found if "node" not in read_endpoints(folder)] or found
    if len(found) > 1 and state_url is None:  # a Redis is its own place: the folder does not matter then
        raise InvalidRequest(f"you run {len(found)} tidegates; {_TELL_WHICH}: {', '.join(map(str, found))}")
    if len(found) != 1:
        return settings
    return replace(settings, process=settings.process.model_copy(update={"state_dir": found[0]}))


def locate_store_settings(state_dir: Path | None, state_url: str | None) -> Settings:
    """Load the settings as `locate_settings` does; without a given store use the one that the tidegate of that folder
    uses.

    Raises:
        InvalidRequest: that store needs a password, which a tidegate never writes to its state folder.
    """
    settings = locate_settings(state_dir, state_url)
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
            f"the tidegate of {folder} keeps its state in {record.place}, whose credentials are not recorded: "
            "set the same TIDEGATE_STATE_URL as it has (or --state-url)"
        )
    if not record.place:
        return settings
    return replace(settings, state=settings.state.model_copy(update={"state_url": SecretStr(record.place)}))


def require_state(settings: Settings) -> None:
    """Raise InvalidRequest if no tidegate has ever stored anything there, so that a wrong folder is not taken
    for empty.
    """
    from control_plane.app.stores import state_exists

    if not state_exists(settings.state.state_url, settings.process.state_dir):
        raise InvalidRequest(
            f"no tidegate has stored any state in {settings.process.state_dir}; {_TELL_WHICH} folder, or with --state-url which Redis"
        )


def admin_client(state_dir: Path | None, admin_url: str | None, reason: str | None = None) -> AdminClient:
    """Make a client of the running `tidegate`'s admin API, which sends the key of TIDEGATE_API_KEY."""
    return AdminClient(endpoint("admin", state_dir, admin_url), api_key(), reason=reason or "")


def offline_actor(reason: str | None) -> Actor:
    """Return who runs this command, for the audit log of a store that it writes to itself."""
    user = os.getuid()
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:  # a container's user may have no name
        name = str(user)
    return Actor(f"{name} (user {user}) on {socket.gethostname()}, offline", reason or "")


def api_key() -> str | None:
    """Return the key in TIDEGATE_API_KEY, or None."""
    key = load_settings().admin.api_key
    return None if key is None else key.get_secret_value()


def _names_state_dir(settings: Settings) -> bool:
    """Whether an option or variable names the state folder, rather than its default."""
    return "state_dir" in settings.process.model_fields_set
