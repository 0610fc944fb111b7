"""Writes `constraints.txt`, the lock file: every package pinned, with the SHA-256 of each of its files on the
index.

    make lock                                  # follow changes of pyproject.toml, keep all other versions
    make lock ARGS='--upgrade'                 # upgrade everything; or ARGS='--upgrade-package NAME'

uv resolves for all platforms and Python versions at once, from the index that its own configuration names.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from dependencies.sections import HEADING, LOCK, SECTIONS

PROJECT = LOCK.parent
OLDEST_PYTHON = "3.11"

HEADER = """\
# Every package that is installed, pinned, with the SHA-256 of each file of its release: whatever the platform, pip installs no other.
# `make lock` writes it, {module} prints the sections that an installation takes, in the order in which they follow.
"""

# Section -> pyproject.toml's extras whose packages it has, beside those of the sections before it. NVIDIA's
# packages that PyTorch needs are in `torch-cuda`.
EXTRAS: dict[str, Sequence[str]] = {
    "serve": ["build"],
    "torch": ["build", "torch"],
    "extras": ["build", "s3", "nvml", "tune", "otel"],
    "dev": ["build", "torch", "s3", "nvml", "tune", "otel", "dev", "perf", "docs"],
    "gpu": ["build", "gpu"],
}

# A platform on which PyTorch needs none of NVIDIA's packages.
WITHOUT_CUDA = "aarch64-apple-darwin"

TORCH = "torch"

# PyTorch's version -> the SHA-256 of its CPU builds. They have a version of their own (2.13.0+cpu): with an
# equal version pip would prefer a file whose digest the index names over one on the disk.
CPU_BUILDS = {
    # torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl
    "2.13.0": ["6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"],
}

_NAME = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==", re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """Write the lock file; `arguments` go to uv."""
    before = LOCK.read_text() if LOCK.exists() else ""
    extras = {extra for section in EXTRAS.values() for extra in section}
    everything = _resolve(sorted(extras), "--universal", "--generate-hashes", *arguments, preferred=before)
    entries = _entries(everything)
    LOCK.write_text("".join(_written(entries, _sections(entries, everything))))
    return 0


def _sections(entries: dict[str, list[str]], everything: str) -> dict[str, list[str]]:
    """Return the names of each section's packages; a package is in the first section that needs it, and in `gpu` whatever
    of its own `serve` has not."""

    def needed(section: str, *options: str) -> set[str]:
        return set(_NAME.findall(_resolve(EXTRAS[section], *options, preferred=everything)))

    needs = {section: needed(section, "--universal") for section in EXTRAS}
    needs |= {"torch-cuda": needs["torch"], "torch": needed("torch", "--python-platform", WITHOUT_CUDA) - {TORCH}}
    found: dict[str, list[str]] = {}
    for section in (section for section in SECTIONS if section in needs):
        taken = {name for before, names in found.items() for name in names if section != "gpu" or before == "serve"}
        found[section] = [name for name in entries if name in needs[section] - taken]
    return found


def _resolve(extras: Iterable[str], *options: str, preferred: str) -> str:
    """Resolve pyproject.toml with these extras by uv; `preferred` are requirements whose versions to keep if
    they fit.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "requirements.txt")
        output.write_text(preferred)
        build_needs = Path(folder, "build.in")
        build_needs.write_text("\n".join(tomllib.loads((PROJECT / "pyproject.toml").read_text())["build-system"]["requires"]))
        chosen = [part for extra in extras for part in ("--extra", extra)]
        command = [
            *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header", "--python-version", OLDEST_PYTHON),
            *(*chosen, *options, "--output-file", str(output), "pyproject.toml", str(build_needs)),
        ]
        subprocess.run(command, cwd=PROJECT, check=True)
        return output.read_text()


def _entries(requirements: str) -> dict[str, list[str]]:
    """Split requirements by package, each with its hashes; a package has several if its version depends on
    Python's.
    """
    found: dict[str, list[str]] = {}
    for entry in re.split(r"\n(?=\S)", requirements.strip()):
        match = _NAME.match(entry)
        assert match, entry
        found.setdefault(match[1], []).append(f"{entry}\n")
    return found


def _cpu_build(entries: dict[str, list[str]]) -> list[str]:
    """Return the requirement of PyTorch's CPU build; empty if its digests are not known for the pinned
    version.
    """
    (entry,) = entries[TORCH]
    version = entry.partition("==")[2].split()[0]
    lines = [f"{TORCH}=={version}+cpu", *(f"    --hash=sha256:{digest}" for digest in CPU_BUILDS.get(version, []))]
    return [" \\\n".join(lines) + "\n"] if len(lines) > 1 else []


def _written(entries: dict[str, list[str]], sections: dict[str, list[str]]) -> Iterable[str]:
    yield HEADER.format(module="dependencies/sections.py")
    for section, about in SECTIONS.items():
        requirements = [entry for name in sections.get(section, []) for entry in entries[name]]
        if requirements := requirements or _cpu_build(entries):
            yield f"\n{HEADING}{section}: {about}\n"
            yield from requirements


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
