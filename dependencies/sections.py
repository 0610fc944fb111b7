"""Part of `constraints.txt` for pip: `python -m dependencies.sections NAME... | pip install --no-deps --require-hashes -r /dev/stdin`.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

LOCK = Path(__file__).resolve().parents[1] / "constraints.txt"

# A line of its own before a section's first package.
HEADING = "# == "

SECTIONS = {
    "serve": "what `make serve` needs: serving, and building what ONNX Runtime serves",
    "torch": "what PyTorch's own variants and their tests need beside PyTorch itself",
    "torch-cpu": "PyTorch's CPU build, which no package index but its own has: for machines that have it at hand",
    "torch-cuda": "PyTorch as package indexes have it, with what its CUDA build needs; in place of torch-cpu",
    "extras": "models in S3, and the plot of `tidegate tune`",
    "dev": "tests and measurements",
}
"""In their order. A package stands in the first one that needs it: `extras` needs `serve`, and `dev` needs both."""


def read_sections(text: str) -> dict[str, str]:
    """The requirements of each section of a lock file, as pip reads them."""
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
    """Each of them with its hashes, on one line."""
    joined = text.replace("\\\n", " ")
    yield from (" ".join(line.split()) for line in joined.splitlines() if line.strip() and not line.startswith("#"))


def main(names: list[str]) -> int:
    """Print the sections that are named."""
    sections = read_sections(LOCK.read_text())
    if unknown := [name for name in names if name not in sections]:
        print(f"error: no section {unknown[0]!r} in {LOCK.name}: there are {', '.join(sections)}", file=sys.stderr)
        return 1
    sys.stdout.write("".join(sections[name] for name in names))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
