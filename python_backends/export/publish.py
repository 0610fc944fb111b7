"""Publishes built artefacts atomically, and removes what earlier builds have left."""

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
def build_lock(model_directory: Path) -> Iterator[None]:
    """Hold the model's build lock.

    Raises:
        BuildError: Another process is building the model.
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
def atomic_replace(model_directory: Path, target: Path) -> Iterator[Path]:
    """Yield an empty staging folder in the model's folder, which replaces `target` when the block ends, or is
    removed if it raises.

    A killed build leaves the staging folder, which the next build clears; Triton ignores it, as its name is
    not a version number. The caller must hold `build_lock`.
    """
    name = ".".join(target.relative_to(model_directory).parts)
    staging, replaced = model_directory / f".{name}.building", model_directory / f".{name}.replaced"
    _remove(staging)
    staging.mkdir()
    try:
        yield staging
        _remove(replaced)
        target.parent.mkdir(exist_ok=True)
        # A directory cannot be renamed over another one. Killed between these two lines, the target is absent
        # and will be built again.
        if target.exists():
            target.rename(replaced)
        staging.rename(target)
    finally:
        if replaced.exists() and not target.exists():
            replaced.rename(target)
        _remove(staging)
        _remove(replaced)


def leftovers(version_directory: Path, variants: Collection[str]) -> list[Path]:
    """Return what earlier builds have left in the version directory of a model with variants.

    That is variants that no recipe makes any more and, once a present variant is built, artefacts and
    manifest from before the model had variants. Files that no build has made are never returned.
    """
    built = {path.parent.name: path.parent for path in version_directory.glob(f"*/{FILENAME}")}
    gone = [folder for name, folder in sorted(built.items()) if name not in variants]
    return gone if built.keys().isdisjoint(variants) else [*gone, *_files_from_before_variants(version_directory)]


def remove_leftovers(paths: Collection[Path]) -> None:
    """Remove these files and folders; the caller must hold `build_lock`."""
    for path in paths:
        _remove(path)


def _files_from_before_variants(version_directory: Path) -> list[Path]:
    try:
        artefacts = json.loads((version_directory / FILENAME).read_text())["artefacts"]
        # The manifest is removed last: it is what identifies the other files as ours.
        return [path for name in (*artefacts, FILENAME) if (path := version_directory / Path(name).name).is_file()]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
