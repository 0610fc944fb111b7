"""Folders of models in a source folder, and their versions, listed with few system calls.

A thousand models are looked at every few seconds, so paths are plain text here: pathlib costs more than the disk.
"""

from __future__ import annotations

import os
from pathlib import Path


def model_folders(source: Path) -> list[str]:
    """Return the paths of a source's folders but hidden ones, sorted. Raises OSError."""
    with os.scandir(source) as entries:
        return sorted(entry.path for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def versions(model: str) -> list[str]:
    """Return the numbers of a model's versions, the lowest first. Raises OSError: the model's folder has just been removed."""
    return sorted((name for name in os.listdir(model) if name.isdecimal()), key=int)


def newest_version(model: str) -> str | None:
    """Return the path of a model's newest version, which Triton serves by default; None without any. Raises as `versions`."""
    found = versions(model)
    return f"{model}/{found[-1]}" if found else None
