"""Prints sections of `constraints.txt` for pip.

    python -m dependencies.sections NAME... | pip install --no-deps --require-hashes -r /dev/stdin

Uses the standard library only, since it runs before anything is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

LOCK = Path(__file__).resolve().parents[1] / "constraints.txt"

# Start of the line before a section's first package.
HEADING = "# == "

SECTIONS = {
    "serve": "what `make serve` needs: serving, and building what ONNX Runtime serves",
    "torch": "what PyTorch's own variants and their tests need beside PyTorch itself",
    "torch-cpu": "PyTorch's CPU build, which no package index but its own has: for machines that have it at hand",
    "torch-cuda": "PyTorch as package indexes have it, with what its CUDA build needs; in place of torch-cpu",
    "extras": "models in S3, GPU memory of models, the plot of `tidegate tune`, and spans of requests",
    "dev": "tests, measurements, and the documents as a site",
    "gpu": "what TensorRT's variants need beside `serve`, on a machine with an NVIDIA GPU; no target of the Makefile installs it",
}
"""Section -> what it is for, in the file's order. A package is in the first section that needs it, so
`extras` needs `serve` installed, and `dev` both; `gpu` shares packages with `torch-cuda`."""


def read_sections(text: str) -> dict[str, str]:
    """Split a lock file into the requirements of each section, as pip reads them."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith(HEADING):
            name = line.removeprefix(HEADING).split(":")[0]
            found[name] = []
        elif line and not line.startswith("#"):
            found[name].append(line)
    return {name: "\n".join([*lines, ""]) for name, lines in found.items()}


def requirements(text: str) -> Iterator[str]:
    """Yield each requirement with its hashes, on one line."""
    joined = text.replace("\\\n", " ")
    yield from (" ".join(line.split()) for line in joined.splitlines() if line.strip() and not line.startswith("#"))


def main(names: list[str]) -> int:
    """Print the named sections; return 1 if there is no such section."""
    sections = read_sections(LOCK.read_text())
    if unknown := [name for name in names if name not in sections]:
        print(f"error: no section {unknown[0]!r} in {LOCK.name}: there are {', '.join(sections)}", file=sys.stderr)
        return 1
    sys.stdout.write("".join(sections[name] for name in names))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
