"""Reads a small file whole, and never more than it may have: files grow, and a device has no end."""

from __future__ import annotations

from pathlib import Path


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Return what a file has. Raises OSError: it cannot be read; ValueError: it has more than `max_bytes`."""
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"is larger than {max_bytes} bytes")
    return content
