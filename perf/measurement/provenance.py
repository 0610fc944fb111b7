"""Where a result comes from: which commit and whether anything was changed, when, on which machine, with which build of Python."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perf.servers.processes import PROJECT

CLEAN = "clean"
UNKNOWN = "unknown"

# What scenarios themselves write, and what says what they wrote, changes nothing that is measured.
_WRITTEN = (":(exclude)perf/results", ":(exclude,glob)**/*.md")
_NAMED = 5


def provenance(tree: Path = PROJECT) -> dict[str, Any]:
    """What `perf/results/*.json` says under `measured`; asked for before anything is measured, so that edits meanwhile do not count."""
    return {
        "commit": _git(tree, "rev-parse", "--short=10", "HEAD") or UNKNOWN,
        "tree": tree_state(tree),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": round(os.getloadavg()[0], 2),
        "machine": machine(),
        "python": python(),
    }


def tree_state(tree: Path = PROJECT) -> str:
    """`clean`, or which files differ from the commit; without git nobody knows."""
    status = _git(tree, "status", "--porcelain", "--untracked-files=all", "--", ".", *_WRITTEN)
    if status is None:
        return UNKNOWN
    changed = [line.split(maxsplit=1)[1] for line in status.splitlines()]
    more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
    return f"changed: {', '.join(changed[:_NAMED])}{more}" if changed else CLEAN


def machine() -> dict[str, Any]:
    processor = _field(Path("/proc/cpuinfo"), "model name", ":") or platform.processor()
    memory_kib = _field(Path("/proc/meminfo"), "MemTotal", ":").split(maxsplit=1)
    return {
        "architecture": platform.machine(),
        "processor": processor,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory_kib[0]) / 2**20, 1) if memory_kib else None,
        "system": _field(Path("/etc/os-release"), "PRETTY_NAME", "=").strip('"') or platform.system(),
        "kernel": platform.release(),
    }


def python() -> dict[str, Any]:
    """Builds of one version differ by a factor: whether its compiler was told to optimise matters most."""
    flags = sysconfig.get_config_var("CONFIG_ARGS") or ""
    # Debian's rules ask make for both, which configure's arguments do not show (debian/rules: profile-opt, -flto).
    is_debians = os.path.realpath(sys.executable).startswith("/usr/bin/") and _system() in ("debian", "ubuntu")
    return {
        "version": platform.python_version(),
        "compiler": platform.python_compiler(),
        "built": platform.python_build()[1],
        "optimised": is_debians or "--enable-optimizations" in flags,
        "link_time_optimised": is_debians or "--with-lto" in flags,
    }


def _system() -> str:
    return _field(Path("/etc/os-release"), "ID", "=").strip('"')


def told(measured: Mapping[str, Any]) -> str:
    """One sentence of a result's provenance."""
    machine, python = measured["machine"], measured["python"]
    tree = "" if measured["tree"] == CLEAN else f" **with uncommitted changes** ({measured['tree']})"
    build = "optimised" if python["optimised"] else "not optimised"
    return (
        f"Measured {measured['at'][:10]} at commit `{measured['commit']}`{tree} in {measured['took_s'] / 60:.1f} minutes: "
        f"{machine['cpus']} CPUs ({machine['processor']}), {machine['memory_gib']} GiB, {machine['system']}, Python {python['version']} "
        f"({python['compiler']}, {build}), load average {measured['load_average']:g} at the start; `{measured['command']}`."
    )


def _git(tree: Path, *arguments: str) -> str | None:
    """None where git has nothing to say."""
    try:
        done = subprocess.run(["git", *arguments], cwd=tree, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def _field(path: Path, name: str, separator: str) -> str:
    """The value of the first line of that name; empty where there is none."""
    lines = path.read_text().splitlines() if path.exists() else []
    parts = (line.partition(separator) for line in lines)
    return next((value.strip() for key, _, value in parts if key.strip() == name), "")
