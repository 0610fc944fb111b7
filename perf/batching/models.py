"""A model for each way of batching that `perf.batching` compares: all of one variant, one runtime and one file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perf.batching.report import LENGTH_AWARE
from perf.servers.processes import PROJECT
from perf.servers.variants import ENCODER, place, place_encoder, variant_folder, with_parameter

_PEER = PROJECT / "perf" / "peers" / "batching"
_RAGGED, _BATCHING = " allow_ragged_batch: true", "dynamic_batching { max_queue_delay_microseconds: 0 }\n"

# What each way changes in the peer's configuration: first come, in batches of 32, padded to the longest.
WAYS: dict[str, Callable[[str], str]] = {
    LENGTH_AWARE: lambda config: config,
    "one-by-one": lambda config: config.replace(_BATCHING, ""),
    "triton": lambda config: config.replace(_RAGGED, "").replace("max_batch_size: 32", "max_batch_size: 64"),
    "first-come": lambda config: config,
    "padded-256": lambda config: with_parameter(config, "pad_to", "256"),
    "padded-512": lambda config: with_parameter(config, "pad_to", "512"),
}


def place_way(repository: Path, way: str, variant: str, *, encoder: Path = ENCODER, instances: int = 1) -> str:
    """Make the model that batches this way; its name. `instances` is of the others' ways: ours has lanes instead."""
    name = f"{way.replace('-', '_')}_{variant}"
    if way == LENGTH_AWARE:
        place_encoder(repository, name, variant, encoder=encoder)
    else:
        config = WAYS[way](with_parameter((_PEER / "config.pbtxt").read_text(), "variant", variant))
        config = config.replace("count: 1", f"count: {instances}")
        place(repository, name, config, {"1/model.py": _PEER / "1" / "model.py", f"1/{variant}": variant_folder(encoder, variant)})
    return name
