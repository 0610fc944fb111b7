"""The types of a recipe; `model_repository/<model>/build.py` defines `RECIPE`, or one recipe per variant as
`RECIPES`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol, runtime_checkable

from python_backends.export.measure import MAX_TOKENS
from python_backends.export.progress import Progress
from python_backends.runtime.execution import Run, Tensors
from python_backends.runtime.machine import NO_GPU, this_machine
from python_backends.runtime.model_config import ModelConfig

Agreement = Mapping[str, Mapping[str, float]]
"""Check -> measure -> value: how well the built artefacts agree with their reference."""


class BuildError(Exception):
    """A recipe cannot run, or its result is not accurate enough; the text is the one sentence that the user
    sees.
    """


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of weights: their published name, the package and version they were read from, their licence and
    SHA-256.
    """

    name: str
    package: str
    licence: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """Calibration texts of a build: the first `texts` lines of a file, none of which the evaluation uses."""

    source: Path
    texts: int

    def read(self) -> list[str]:
        """Read the texts.

        Raises:
            BuildError: The file has fewer texts.
        """
        lines = [line for line in self.source.read_text().splitlines() if line][: self.texts]
        if len(lines) < self.texts:
            raise BuildError(f"'{self.source}' has {len(lines)} texts of the {self.texts} needed")
        return lines


class AccuracyGate(Protocol):
    """What a variant's measurements must be; a dataclass, whose fields its manifest records."""

    def shortfall(self, agreement: Agreement) -> str | None:
        """Return by how much the measurements of `Trial.compare` miss the gate; None if they pass. NaN does
        not pass.
        """
        ...


@dataclass(frozen=True, slots=True)
class Gate:
    """Accuracy gate of an encoder's variant against the FP32 reference.

    It limits the cosine at the first percentile of all texts, and the loss of rank correlation with people's
    scores, relative to the reference's.
    """

    cosine_p1_at_least: float
    spearman_loss_at_most: float

    def shortfall(self, agreement: Agreement) -> str | None:
        """Return by how much the measurements of `Trial.compare` miss the gate; None if they pass. NaN does
        not pass.
        """
        cosine, loss = agreement["against_fp32"]["cosine_p1"], agreement["similarity"]["relative_loss"]
        if not cosine >= self.cosine_p1_at_least:
            return f"the cosine with fp32 at the worst percentile is {cosine:.5f}, below {self.cosine_p1_at_least}"
        if not loss <= self.spearman_loss_at_most:
            return f"it loses {loss:.2%} of the rank correlation, more than {self.spearman_loss_at_most:.2%}"
        return None


AUTO = Gate(cosine_p1_at_least=0.99, spearman_loss_at_most=0.01)
"""Gate that an encoder's variant must pass to be chosen by `auto`: users must not notice the difference."""


class Trial(Protocol):
    """Test of a model's variants, independent of the runtime that runs them."""

    @property
    def config(self) -> ModelConfig:
        """Configuration that a runtime needs to open a variant."""
        ...

    def inputs(self, batch: int, length: int) -> Tensors:
        """Make inputs of a shape, to measure time and memory."""
        ...

    def compare(self, run: Run) -> Agreement:
        """Measure `against_fp32`, and whatever else the gate looks at."""
        ...


@runtime_checkable
class BenchmarkedTrial(Trial, Protocol):
    """Trial of embeddings, which people's scores of other texts can judge, too."""

    def benchmark(self, run: Run, path: Path) -> Mapping[str, float]:
        """Measure `similarity` on the pairs of another file. Raises BuildError if it cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class Serving:
    """Serving of a variant: how, and what it must pass before.

    `runtime` is a name in `runtime/variants/variant.py`, `file` the artefact that it opens, `device` "cpu" or "gpu".
    `auto` is the gate that it must pass to be chosen by `auto`. `measured_tokens` are those of the largest batch
    whose latency is measured. `needs` returns what a build needs that this machine lacks ("it needs an NVIDIA GPU"), or None. `sha256`
    is the digest of a file that is identical wherever it is built and was verified once: it may be served
    before it is measured here.
    """

    runtime: str
    file: str
    trial: Trial
    gate: AccuracyGate
    auto: AccuracyGate = AUTO
    device: str = "cpu"
    measured_tokens: int = MAX_TOKENS
    needs: Callable[[], str | None] = lambda: None
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Recipe for the artefacts of a model version, or of one variant of it.

    `build` writes them into the given folder, reports its steps, and returns its measurements; it raises
    BuildError if the result must not be served. The other fields are what the result depends on: `libraries`
    by their installed versions, `sources` (the build.py itself and every module that shapes the result) and
    the calibration texts by their content, `settings` by value, and for a variant the machine's kind, on
    which its latencies and often its accuracy depend. One that is `on_demand` is built first when it is named.
    """

    build: Callable[[Path, Progress], Agreement]
    provenance: Provenance
    libraries: tuple[str, ...]
    sources: tuple[Path, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    calibration: Calibration | None = None
    serving: Serving | None = None
    on_demand: bool = False

    def inputs(self) -> dict[str, str]:
        """Return everything that the artefacts depend on, by a name for users; inputs that this machine lacks
        are left out.
        """
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
        """Check that the recipe's libraries are installed.

        Raises:
            BuildError: A library is missing.
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
