"""Opens built artefacts with the runtime that will serve them, so that measurements hold for serving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from python_backends.export.discovery import Target
from python_backends.export.recipe import BuildError
from python_backends.runtime.engines.cpu import usable_cpu_count
from python_backends.runtime.errors import BackendError
from python_backends.runtime.execution import Run
from python_backends.runtime.runtimes import open_runtime
from python_backends.runtime.variants.variant_choice import Variant


@contextmanager
def opened(target: Target, directory: Path) -> Iterator[Run]:
    """Open a variant whose artefacts are in `directory`, with a thread per usable CPU; yield its `run`.

    Raises:
        BuildError: The runtime cannot open it, or fails in the block.
    """
    serving = target.recipe.serving
    assert serving is not None
    variant = Variant(target.variant, directory, directory / serving.file, serving.runtime, serving.device, None)
    kind = "GPU" if serving.device == "gpu" else "CPU"
    try:
        runtime = open_runtime(variant, serving.trial.config, kind=kind, device_id=0, threads=usable_cpu_count())
        try:
            yield runtime.run
        finally:
            runtime.close()
    except BackendError as exc:
        raise BuildError(str(exc)) from exc
