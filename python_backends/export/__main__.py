"""`python -m python_backends.export [--force] [--quick] [--list] [--variant V] [--sts FILE]
ROOT_OR_MODEL_DIR...`: run stale recipes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from python_backends.export.background import run_in_background
from python_backends.export.builder import Demand, benchmark, build_if_stale, remove_stale_variants
from python_backends.export.discovery import Target, find_model_directories, load_targets, only_variants
from python_backends.export.listing import describe
from python_backends.export.progress import JsonProgress, Progress
from python_backends.export.recipe import BuildError

# 128 + SIGINT, as shells report it.
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 if everything is up to date, 1 if something could not be
    built.

    A failure does not keep the other targets from being built.
    """
    options = _parser().parse_args(arguments)
    if options.background_of:
        run_in_background(options.background_of)
    progress = (JsonProgress if options.json else Progress)(sys.stdout)
    failures = _Failures(progress)
    try:
        targets = _load(options, failures)
        chosen: list[Target] = []
        with failures.of(""):
            chosen = only_variants(targets, options.variant)
        if options.list:
            _show(chosen, failures)
        else:
            _build(chosen, options, failures, progress)
            _clear(targets, failures)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 1 if failures.happened else 0


class _Failures:
    """Reporter of failures, which remembers whether there were any."""

    def __init__(self, progress: Progress) -> None:
        self.happened = False
        self._progress = progress

    @contextmanager
    def of(self, label: str) -> Iterator[None]:
        """Report errors in the block under `label` and suppress them; an interrupt is reported and raised
        again.
        """
        try:
            yield
        except BuildError as exc:
            self._say(label, str(exc))
        except ImportError as exc:
            self._say(label, f"{exc}: run `make models`")
        except OSError as exc:
            self._say(label, f"{exc.strerror}{f': {exc.filename!r}' if exc.filename else ''}")
        except KeyboardInterrupt:
            self._say(label, "interrupted, nothing is published")
            raise
        except Exception as exc:
            # A library's own error, such as out of memory or an unreadable graph. The other variants do not
            # depend on this one.
            self._say(label, f"{type(exc).__name__}: {exc}")

    def _say(self, label: str, message: str) -> None:
        self.happened = True
        self._progress.failed(label, message)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m python_backends.export", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="ROOT_OR_MODEL_DIR")
    parser.add_argument("--force", action="store_true", help="also build what is up to date")
    parser.add_argument("--quick", action="store_true", help="build only what may be served unmeasured; measure nothing")
    parser.add_argument("--json", action="store_true", help="report progress to a program, as a JSON object per line")
    parser.add_argument("--background-of", type=int, metavar="PID", help="run at the lowest priority, and end with this parent process")
    parser.add_argument("--list", action="store_true", help="show what would be built and why, and build nothing")
    parser.add_argument("--variant", action="append", default=[], metavar="V", help="only this variant; repeatable")
    parser.add_argument("--sts", type=Path, metavar="FILE", help="measure the variants also on this STS benchmark (csv) and record it")
    return parser


def _load(options: argparse.Namespace, failures: _Failures) -> list[Target]:
    targets: list[Target] = []
    with failures.of(""):
        if options.sts and not options.sts.is_file():
            raise BuildError(f"--sts: there is no file '{options.sts}'")
        for model_directory in find_model_directories(options.paths):
            with failures.of(model_directory.name):
                targets += load_targets(model_directory)
    return targets


def _show(targets: Sequence[Target], failures: _Failures) -> None:
    for target in targets:
        with failures.of(target.label):
            print("\n".join(describe(target)))


def _build(targets: Sequence[Target], options: argparse.Namespace, failures: _Failures, progress: Progress) -> None:
    demand = Demand(force=options.force, named=bool(options.variant), quick=options.quick)
    for target in targets:
        with failures.of(target.label):
            build_if_stale(target, progress, demand)
            if options.sts:
                benchmark(target, progress, options.sts)


def _clear(targets: Sequence[Target], failures: _Failures) -> None:
    for model_directory in dict.fromkeys(target.model_directory for target in targets if target.variant):
        with failures.of(model_directory.name):
            remove_stale_variants(model_directory, [target.variant for target in targets if target.model_directory == model_directory])


if __name__ == "__main__":
    sys.exit(main())
