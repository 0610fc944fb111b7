"""`tidegate backup | restore`: save the state store to a file and load it back.

The file does not depend on the kind of store, so it also moves state from SQLite to Redis and back.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer
from rich.console import Console
from rich.markup import escape

from control_plane.audit.domain.entry import Actor
from control_plane.cli.common.backup_lines import Backup, read_backup, write_backup
from control_plane.cli.common.options import (
    ReasonOption,
    StateDirOption,
    StateUrlOption,
    locate_store_settings,
    offline_actor,
    require_state,
)
from control_plane.core.errors import Conflict, InvalidRequest
from control_plane.metering.domain.usage import EVERY_DAY
from control_plane.metering.ports import UsageStore
from control_plane.objects.domain.purge import EVERY_MODEL, Purge
from control_plane.objects.domain.stored import Kind, Stored
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.ports import StateStore
from control_plane.settings import Settings
from control_plane.storage.store_record import record_of


def backup(
    file: Annotated[Path, typer.Argument(help="File to write; an existing one is replaced once the new one is complete.")],
    state_url: StateUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Write keys (without their secrets), webhook secrets (whole: keep the file as you keep those), tenants, routes,
    prices and usage sums to a file that only you can read.

    A running tidegate goes on meanwhile.
    """
    settings = locate_store_settings(state_dir, state_url)
    require_state(settings)
    saved = asyncio.run(_read(settings))
    _write_private(file, write_backup(saved))
    Console().print(escape(f"{_describe(saved)} of {_place(settings)} saved in {file}"), highlight=False, soft_wrap=True)


def restore(
    file: Annotated[Path, typer.Argument(help="File that `tidegate backup` wrote.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite a store that is not empty: its content is lost.")] = False,
    reason: ReasonOption = None,
    state_url: StateUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Replace the store's content by a backup's. Running tidegates see it within a second; cached responses
    are purged.

    The whole file is checked before anything is written.
    """
    try:
        saved = read_backup(file.read_bytes())
    except OSError as exc:
        raise InvalidRequest(f"{file} cannot be read: {exc.strerror}") from exc
    except InvalidRequest as exc:
        raise InvalidRequest(f"{file} is not restored: {exc}") from exc
    settings = locate_store_settings(state_dir, state_url)
    asyncio.run(_replace(settings, saved, force=force, actor=offline_actor(reason)))
    Console().print(escape(f"{_describe(saved)} restored from {file} to {_place(settings)}"), highlight=False, soft_wrap=True)


@asynccontextmanager
async def _stores(settings: Settings, actor: Actor) -> AsyncIterator[tuple[StateStore, UsageStore]]:
    where = settings.state.state_url, settings.process.state_dir
    from control_plane.app.stores import audited_state, open_usage_store

    async with audited_state(*where, actor) as state:
        usage = await open_usage_store(*where)
        try:
            yield state, usage
        finally:
            await usage.close()


async def _read(settings: Settings) -> Backup:
    async with _stores(settings, offline_actor(None)) as (state, usage):
        return await _content(state, usage)


async def _replace(settings: Settings, saved: Backup, *, force: bool, actor: Actor) -> None:
    async with _stores(settings, actor) as (state, usage):
        present = await _content(state, usage)
        if not force and (present.objects or present.totals):
            raise Conflict(f"the store is not empty, it holds {_describe(present)}, which would be lost; use --force to overwrite them")
        # A new purge of all models: the store that is replaced may hold newer purges than the backup, and
        # without them responses that were purged since the backup would be found in the caches again.
        purge = Purge(EVERY_MODEL, uuid4().hex)
        await state.restore([*saved.objects, Stored(Kind.PURGE, purge.model, 0, to_body(purge))])
        await usage.restore(saved.totals)


async def _content(state: StateStore, usage: UsageStore) -> Backup:
    """Read what a backup contains: everything but purges, since a restore purges all models anyway."""
    everything = await state.changes(0, timeout_s=0)  # unlike list_all, this is a consistent snapshot of all kinds
    objects = [stored for stored in everything if stored.body is not None and stored.kind != Kind.PURGE]
    return Backup(objects, await usage.totals(since_day=EVERY_DAY[0], until_day=EVERY_DAY[1]))


def _place(settings: Settings) -> str:
    return record_of(settings.state.state_url).place or str(settings.process.state_dir)


def _describe(backup: Backup) -> str:
    return f"{len(backup.objects)} objects and {len(backup.totals)} usage sums"


def _write_private(file: Path, content: bytes) -> None:
    """Write the file atomically, readable by this user only from the start. Raises InvalidRequest."""
    partial = file.parent / f".{file.name}.{os.getpid()}"  # with_name raises for `.` and `/`, which have none
    try:
        with open(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as written:
            written.write(content)
            written.flush()
            os.fsync(written.fileno())
        partial.replace(file)
    except OSError as exc:
        raise InvalidRequest(f"{file} cannot be written: {exc.strerror}") from exc
    finally:
        with suppress(OSError):  # where nothing could be written nothing can be removed, such as in a folder of somebody else
            partial.unlink()
