"""One way to run a variant, whatever it was built for: the same tensors in, the same tensors out.

The modules behind the table are imported when a variant needs them, since each brings a heavy library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Protocol

from python_backends.runtime.cpu import THREADS_PARAMETER
from python_backends.runtime.errors import ConfigError
from python_backends.runtime.execution import Array, Tensors
from python_backends.runtime.model_config import ModelConfig
from python_backends.runtime.signature import Signature
from python_backends.runtime.variant import RUNTIMES
from python_backends.runtime.variant_choice import Variant


class Runtime(Protocol):
    """A model that is loaded."""

    @property
    def signature(self) -> Signature:
        """What its file takes and returns; for `check_signature`."""
        ...

    def run(self, output_names: Sequence[str], inputs: Tensors) -> Sequence[Array]:
        """The outputs named, in that order, in arrays that nothing writes to later. May be called from several threads at once.

        Raises:
            RequestError: The inputs are not what the model takes.
            ExecutionError: It failed on them all the same.
        """
        ...

    def close(self) -> None:
        """Give memory and devices back; not while something runs, and nothing may run afterwards."""
        ...


def open_runtime(variant: Variant, config: ModelConfig, *, kind: str, device_id: int, threads: int | None = None) -> Runtime:
    """Load a variant for an instance of `kind` ("CPU", "GPU", ...) on `device_id`; `threads` overrides the configuration's count.

    Raises:
        ConfigError: The file, the configuration and this machine do not fit together.
    """
    if variant.runtime not in RUNTIMES:
        raise ConfigError(f"model '{config.name}': unknown runtime '{variant.runtime}', known are: {', '.join(RUNTIMES)}")
    if threads is not None:
        config = replace(config, parameters={**config.parameters, THREADS_PARAMETER: str(threads)})
    runtime: Runtime = import_module(RUNTIMES[variant.runtime]).open_model(variant.file, config, kind=kind, device_id=device_id)
    return runtime
