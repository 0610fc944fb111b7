"""Put a version directory in place as a whole, or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from python_backends.export.recipe import BuildError


@contextmanager
def replacing(version_directory: Path) -> Iterator[Path]:
    """An empty folder beside `version_directory` that takes its place when the block ends, or vanishes if it raises.

    A build that is killed leaves the folder, which the next one clears; Triton ignores it, as its name is no version number.

    Raises:
        BuildError: Another process is building the same model.
    """
    staging = version_directory.with_name(f".{version_directory.name}.building")
    replaced = version_directory.with_name(f".{version_directory.name}.replaced")
    with _only_builder(version_directory.parent):
        _remove(staging)
        staging.mkdir()
        try:
            yield staging
            _remove(replaced)
            # A directory cannot be renamed over another one. Killed between these two lines, the version is absent and will be built again.
            if version_directory.exists():
                version_directory.rename(replaced)
            staging.rename(version_directory)
        finally:
            _remove(staging)
            _remove(replaced)


@contextmanager
def _only_builder(model_directory: Path) -> Iterator[None]:
    # A lock on the folder itself leaves no lock file, and ends with the process however it ends.
    descriptor = os.open(model_directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BuildError("another process is building it now") from None
    finally:
        os.close(descriptor)


def _remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
