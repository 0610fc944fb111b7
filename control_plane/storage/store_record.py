"""Record of which store the last `tidegate serve` of a state folder used, for commands that open the store
themselves.

Without it `tidegate backup` beside a server with `--state-url` would save the folder's own, empty store. It
holds no secrets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr

from control_plane.storage.durable_files import open_private

_FILE = "store.json"


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """Place of the state store that a `tidegate serve` uses."""

    place: str
    """URL of a Redis, without user, password and options; empty for SQLite files in the folder itself."""
    is_whole: bool
    """Whether the place alone is enough to connect, because the URL has no credentials or options."""

    def __str__(self) -> str:
        return self.place or "its own SQLite files"


def record_of(state_url: SecretStr | None) -> StoreRecord:
    """Make the record of a store. Raises StartupError if the URL is not a Redis's."""
    if state_url is None:
        return StoreRecord("", is_whole=True)
    # Imported here: commands beside a server with SQLite then never load the Redis client.
    from control_plane.storage.redis import place_of

    parts = urlsplit(state_url.get_secret_value())
    return StoreRecord(place_of(state_url, setting="--state-url"), is_whole="@" not in parts.netloc and not parts.query)


def write_store_record(state_dir: Path, state_url: SecretStr | None) -> None:
    """Write the record atomically. Raises OSError, StartupError."""
    record = record_of(state_url)
    partial = state_dir / f".{_FILE}"
    partial.unlink(missing_ok=True)
    with open(partial, "x", encoding="utf-8", opener=open_private) as file:
        file.write(json.dumps({"state": record.place, "is_whole": record.is_whole}) + "\n")
    partial.replace(state_dir / _FILE)


def read_store_record(state_dir: Path) -> StoreRecord | None:
    """Read the record; None if no `tidegate serve` has written a valid one."""
    try:
        found = json.loads((state_dir / _FILE).read_text(encoding="utf-8"))
        return StoreRecord(str(found["state"]), bool(found["is_whole"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
