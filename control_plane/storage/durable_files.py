"""What folders of state have alike: files that only this user reads, and flushes after which a power cut takes nothing away."""

from __future__ import annotations

import os
from pathlib import Path


def open_private(path: str, flags: int) -> int:
    """Opener for `open`: a file that it makes is readable by this user only."""
    return os.open(path, flags, 0o600)


def flush_to_disk(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
