"""Upstream of a Triton that lets only its node list models, so that its index is read elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from control_plane.core.model import ModelVersion
from control_plane.triton.ports import ModelControl, Upstream

ReadIndex = Callable[[], Coroutine[Any, Any, list[ModelVersion]]]
"""Returns Triton's index, and raises, as `triton/ports.ModelControl.index`."""


class UpstreamWithIndex:
    """Upstream that goes straight to Triton for all but its index."""

    def __init__(self, upstream: Upstream, index: ReadIndex) -> None:
        self.endpoints = upstream.endpoints
        self.http, self.grpc, self.liveness = upstream.http, upstream.grpc, upstream.liveness
        self.is_serving, self.metrics_text, self.close = upstream.is_serving, upstream.metrics_text, upstream.close
        self.control: ModelControl = ControlWithIndex(upstream.control, index)


class ControlWithIndex:
    """Model control of such a Triton: `triton/ports.ModelControl`."""

    def __init__(self, control: ModelControl, index: ReadIndex) -> None:
        self.index = index
        self.is_live, self.loaded_config, self.server_version = control.is_live, control.loaded_config, control.server_version
        self.is_decoupled, self.memory_bytes, self.compute_times = control.is_decoupled, control.memory_bytes, control.compute_times
        # Refused by Triton, which takes them from its node alone.
        self.load, self.unload = control.load, control.unload
