"""What a recipe is; `model_repository/<model>/build.py` offers one as `RECIPE`, or one for each variant as `RECIPES`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

from python_backends.export.progress import Progress
from python_backends.runtime.execution import Run, Tensors
from python_backends.runtime.machine import NO_GPU, this_machine
from python_backends.runtime.model_config import ModelConfig

Agreement = Mapping[str, Mapping[str, float]]
"""Check -> measure -> value: what a build measured between its artefacts and their reference."""


class BuildError(Exception):
    """A recipe cannot run or its result is not good enough; its text is the one sentence that the user sees."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where weights come from: the published name, the package and version they were read from, their licence and SHA-256."""

    name: str
    package: str
    licence: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """The texts that a build may fit itself to: the first `texts` lines of a file, none of which its evaluation uses."""

    source: Path
    texts: int

    def read(self) -> list[str]:
        """The texts.

        Raises:
            BuildError: There are not so many.
        """
        lines = [line for line in self.source.read_text().splitlines() if line][: self.texts]
        if len(lines) < self.texts:
            raise BuildError(f"'{self.source}' has {len(lines)} texts of the {self.texts} needed")
        return lines


@dataclass(frozen=True, slots=True)
class Gate:
    """Accuracy limits of a variant against the FP32 reference.

    The cosine at the worst percentile of all texts, and how much of the rank correlation with people's scores may be lost, as a part of the
    reference's.
    """

    cosine_p1_at_least: float
    spearman_loss_at_most: float

    def shortfall(self, agreement: Agreement) -> str | None:
        """By how much what `Trial.compare` measured misses it, None where it is met; what is not a number does not meet it."""
        cosine, loss = agreement["against_fp32"]["cosine_p1"], agreement["similarity"]["relative_loss"]
        if not cosine >= self.cosine_p1_at_least:
            return f"the cosine with fp32 at the worst percentile is {cosine:.5f}, below {self.cosine_p1_at_least}"
        if not loss <= self.spearman_loss_at_most:
            return f"it loses {loss:.2%} of the rank correlation, more than {self.spearman_loss_at_most:.2%}"
        return None

    def require(self, agreement: Agreement) -> None:
        """Check it before a variant is published. Raises BuildError: it is not met."""
        if shortfall := self.shortfall(agreement):
            raise BuildError(f"{shortfall}: nothing is published")


AUTO = Gate(cosine_p1_at_least=0.99, spearman_loss_at_most=0.01)
"""What a variant must hold to be served where nobody has named one: the difference must not be felt."""


class Trial(Protocol):
    """How the variants of one model are tried out, whatever runs them."""

    @property
    def config(self) -> ModelConfig:
        """What a runtime must know to open one."""
        ...

    def inputs(self, batch: int, length: int) -> Tensors:
        """Inputs of a shape, for measuring time and memory."""
        ...

    def compare(self, run: Run) -> Agreement:
        """`against_fp32` and `similarity`, as the gate reads them."""
        ...

    def benchmark(self, run: Run, path: Path) -> Mapping[str, float]:
        """The measures of `similarity` on the pairs of another file. Raises BuildError: it cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class Serving:
    """How a variant is served, and what must hold before it is.

    `runtime` is one of `runtime/variant.py`'s, `file` the artefact that it opens, `device` "cpu" or "gpu". `needs` says what a build needs
    that this machine has not got ("it needs an NVIDIA GPU"), and None where it has all. `sha256` is of a file that is the same wherever it
    is built and has been verified once: it may be served before it is measured here.
    """

    runtime: str
    file: str
    trial: Trial
    gate: Gate
    device: str = "cpu"
    needs: Callable[[], str | None] = lambda: None
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the artefacts of one model version, or of one variant of it, are made.

    `build` writes them into the folder it is given, reports its steps, and returns what it measured; it raises BuildError where the result
    must not be served. The rest is what the result depends on: `libraries` by their installed versions, `sources` and the calibration texts
    by their content (the build.py itself and whatever else shapes the result), `settings` by value, and for a variant the machine's kind,
    on which its latencies and often its accuracy depend.
    """

    build: Callable[[Path, Progress], Agreement]
    provenance: Provenance
    libraries: tuple[str, ...]
    sources: tuple[Path, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    calibration: Calibration | None = None
    serving: Serving | None = None

    def inputs(self) -> dict[str, str]:
        """Everything the artefacts depend on, by a name that can be shown to a user; what this machine has not got is left out."""
        installed = {name: _installed_version(name) for name in self.libraries}
        kind = this_machine(self.serving.device).kind if self.serving else NO_GPU
        return {
            "weights": self.provenance.sha256,
            **{f"setting {name}": value for name, value in self.settings.items()},
            **{f"source {path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in self._all_sources()},
            **{f"library {name}": number for name, number in installed.items() if number},
            **({} if kind == NO_GPU else {"machine": kind}),
        }

    def require_libraries(self) -> None:
        """Check that the recipe can run.

        Raises:
            BuildError: A library is not installed.
        """
        if missing := [name for name in self.libraries if not _installed_version(name)]:
            raise BuildError(f"{', '.join(missing)} must be installed to build it: run `make models`")

    def _all_sources(self) -> Sequence[Path]:
        return (*self.sources, *([self.calibration.source] if self.calibration else []))


def _installed_version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
