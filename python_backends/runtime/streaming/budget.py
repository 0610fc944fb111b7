"""The parameter `weight_memory_mb`: MiB that the weights of an instance may take at a time."""

from __future__ import annotations

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.model_config import ModelConfig

PARAMETER = "weight_memory_mb"
MAX_MIB = 1 << 24


def weight_memory_bytes(config: ModelConfig) -> int | None:
    """Return the budget of an instance's weights; None where all stay in memory.

    Raises:
        ConfigError: The parameter is no number of MiB.
    """
    if PARAMETER not in config.parameters:
        return None
    mib = config.integer(PARAMETER, 0)
    if not 1 <= mib <= MAX_MIB:
        raise ConfigError(f"model '{config.name}': parameter '{PARAMETER}' must be MiB in 1..{MAX_MIB}, not {mib}")
    return mib << 20
