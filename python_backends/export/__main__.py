"""`python -m python_backends.export [--force] [--list] ROOT_OR_MODEL_DIR...`: run the recipes whose artefacts are not up to date."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from python_backends.export.manifest import read_manifest, stale_reason, write_manifest
from python_backends.export.progress import Progress
from python_backends.export.publish import replacing
from python_backends.export.recipe import BuildError, Recipe, find_model_directories, load_recipe

# Every recipe makes version 1: a variant is a model of its own, so that Triton can load the two independently.
VERSION = "1"

# 128 + SIGINT, as shells report it.
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0 when everything is up to date, 1 when something could not be built."""
    options = _parser().parse_args(arguments)
    model_directory: Path | None = None
    try:
        for model_directory in find_model_directories(options.paths):
            recipe = load_recipe(model_directory)
            if options.list:
                _show(model_directory, recipe)
            else:
                _bring_up_to_date(model_directory, recipe, force=options.force)
    except BuildError as exc:
        return _fail(model_directory, str(exc))
    except ImportError as exc:
        return _fail(model_directory, f"{exc}: run `pip install -e .[build]`")
    except OSError as exc:
        return _fail(model_directory, f"{exc.strerror}{f': {exc.filename!r}' if exc.filename else ''}")
    except KeyboardInterrupt:
        _fail(model_directory, "interrupted, nothing is published")
        return INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m python_backends.export", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="ROOT_OR_MODEL_DIR")
    parser.add_argument("--force", action="store_true", help="build also what is up to date")
    parser.add_argument("--list", action="store_true", help="say what would be built and why, and build nothing")
    return parser


def _show(model_directory: Path, recipe: Recipe) -> None:
    version_directory = model_directory / VERSION
    reason = stale_reason(version_directory, recipe.inputs())
    print(f"{model_directory.name}: {reason or 'up to date'}")
    if manifest := read_manifest(version_directory):
        for name, artefact in manifest.artefacts.items():
            print(f"  {name}  {artefact.size_bytes / 1e6:.1f} MB  sha256 {artefact.sha256[:12]}")
        for check, measures in manifest.agreement.items():
            print(f"  {check}: {', '.join(f'{measure} {value}' for measure, value in measures.items())}")


def _bring_up_to_date(model_directory: Path, recipe: Recipe, *, force: bool) -> None:
    version_directory = model_directory / VERSION
    reason = "forced" if force else stale_reason(version_directory, recipe.inputs())
    if reason is None:
        return
    print(f"{model_directory.name}: {reason}", flush=True)
    recipe.require_libraries()
    started_s = time.monotonic()
    with replacing(version_directory) as staging:
        agreement = recipe.build(staging, Progress(sys.stdout))
        write_manifest(staging, recipe, agreement, time.monotonic() - started_s)


def _fail(model_directory: Path | None, message: str) -> int:
    print(f"error: {f'{model_directory.name}: ' if model_directory else ''}{message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
