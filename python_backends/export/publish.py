"""Put what was built in place as a whole, or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from python_backends.export.manifest import FILENAME
from python_backends.export.recipe import BuildError


@contextmanager
def only_builder(model_directory: Path) -> Iterator[None]:
    """Holds the model against other builds.

    Raises:
        BuildError: Another process is building it.
    """
    # A lock on the folder itself leaves no lock file, and ends with the process however it ends.
    descriptor = os.open(model_directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BuildError("another process is building it now") from None
    finally:
        os.close(descriptor)


@contextmanager
def replacing(model_directory: Path, target: Path) -> Iterator[Path]:
    """An empty folder in the model's that takes the place of `target` (in it, too) when the block ends, or vanishes if it raises.

    A build that is killed leaves the folder, which the next one clears; Triton ignores it, as its name is no version number. For whoever
    holds `only_builder`.
    """
    name = ".".join(target.relative_to(model_directory).parts)
    staging, replaced = model_directory / f".{name}.building", model_directory / f".{name}.replaced"
    _remove(staging)
    staging.mkdir()
    try:
        yield staging
        _remove(replaced)
        target.parent.mkdir(exist_ok=True)
        # A directory cannot be renamed over another one. Killed between these two lines, the target is absent and will be built again.
        if target.exists():
            target.rename(replaced)
        staging.rename(target)
    finally:
        if replaced.exists() and not target.exists():
            replaced.rename(target)
        _remove(staging)
        _remove(replaced)


def leftovers(version_directory: Path, variants: Collection[str]) -> list[Path]:
    """What builds before have left in the version directory of a model with variants: those that no recipe makes any more, and once one of
    today's is there, the artefacts and manifest of a time without variants. What was not built is nobody's to remove."""
    built = {path.parent.name: path.parent for path in version_directory.glob(f"*/{FILENAME}")}
    gone = [folder for name, folder in sorted(built.items()) if name not in variants]
    return gone if built.keys().isdisjoint(variants) else [*gone, *_of_a_time_without_variants(version_directory)]


def remove_leftovers(paths: Collection[Path]) -> None:
    """For whoever holds `only_builder`."""
    for path in paths:
        _remove(path)


def _of_a_time_without_variants(version_directory: Path) -> list[Path]:
    try:
        artefacts = json.loads((version_directory / FILENAME).read_text())["artefacts"]
        # The manifest last: without it nobody would know the rest for ours.
        return [path for name in (*artefacts, FILENAME) if (path := version_directory / Path(name).name).is_file()]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
