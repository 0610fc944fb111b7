"""What the last `tidegate serve` of a state folder kept its state in, for commands that open the store themselves: no secrets.

Without it `tidegate backup` beside a server with `--state-url` would save the folder's own, empty store.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr

_FILE = "store.json"


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """Where state is."""

    place: str
    """A Redis's URL, without user, password and options; empty: SQLite files in the folder itself."""
    is_whole: bool
    """Whether the place alone is enough to reach it."""

    def __str__(self) -> str:
        return self.place or "its own SQLite files"


def record_of(state_url: SecretStr | None) -> StoreRecord:
    """Raises StartupError: the URL is not one of a Redis."""
    if state_url is None:
        return StoreRecord("", is_whole=True)
    from control_plane.storage.redis import place_of

    parts = urlsplit(state_url.get_secret_value())
    return StoreRecord(place_of(state_url, setting="--state-url"), is_whole="@" not in parts.netloc and not parts.query)


def write_store_record(state_dir: Path, state_url: SecretStr | None) -> None:
    """In one step. Raises OSError, StartupError."""
    record = record_of(state_url)
    partial = state_dir / f".{_FILE}"
    partial.unlink(missing_ok=True)
    with open(partial, "x", encoding="utf-8", opener=_private) as file:
        file.write(json.dumps({"state": record.place, "is_whole": record.is_whole}) + "\n")
    partial.replace(state_dir / _FILE)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_store_record(state_dir: Path) -> StoreRecord | None:
    """None: no `tidegate serve` has written one."""
    try:
        found = json.loads((state_dir / _FILE).read_text(encoding="utf-8"))
        return StoreRecord(str(found["state"]), bool(found["is_whole"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
