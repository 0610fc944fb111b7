"""Layers of a PyTorch model of whose weights only a part is on the device at a time.

Weights of the layers that do not stay there are in host memory. They take turns in two buffers on the device: while one layer
computes, the next one's weights are copied. Hooks around each layer's `forward` point its parameters into its buffer; the
model's own code is unchanged, and so are its kernels and its answers. `engines/causal_lm` calls it for language models.
"""

from __future__ import annotations

import mmap
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.streaming.layer_plan import BUFFERS, LayerPlan, plan_layers

ALIGNMENT = 512
"""Bytes; as PyTorch's own allocator places tensors on a GPU, so that libraries choose the same kernels."""

_NO_LAYER = -1

Event = Any
"""The end of a copy, as its device tells it."""


class Device(Protocol):
    """Port to a device that copies while it computes; tests use a fake without a GPU."""

    def host_memory(self, nbytes: int) -> Tensor:
        """Return memory of the host [nbytes] UINT8 that the device reads by itself (DMA)."""
        ...

    def device_memory(self, nbytes: int) -> Tensor:
        """Return memory of the device [nbytes] UINT8."""
        ...

    def copy(self, source: Tensor, target: Tensor) -> Event:
        """Copy to the device beside what computes there, once all that it was given to compute so far is done."""
        ...

    def wait(self, event: Event) -> None:
        """Have what the device is given to compute from now on wait for a copy."""
        ...


class CudaDevice:
    """A GPU with a stream of its own for copies; implements `Device`. Computing goes to PyTorch's current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device)
        self._pinned: list[Tensor] = []

    def host_memory(self, nbytes: int) -> Tensor:
        """See `Device`. PyTorch's own pinned memory would be rounded up to a power of two. Raises ConfigError: there is not as much."""
        try:
            memory = torch.frombuffer(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8)
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), nbytes, 0))
        except (OSError, RuntimeError) as exc:
            raise ConfigError(f"{nbytes >> 20} MiB of host memory cannot be pinned for layers that are streamed: {exc}") from exc
        self._pinned.append(memory)
        weakref.finalize(self, _unpin, self._copies, memory.data_ptr()).atexit = False
        return memory

    def device_memory(self, nbytes: int) -> Tensor:
        """See `Device`. Raises ConfigError: the GPU has not as much."""
        try:
            memory = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        except RuntimeError as exc:
            raise ConfigError(f"{nbytes >> 20} MiB for weights cannot be had on {self._device}: {exc}") from exc
        memory.record_stream(self._copies)  # once it is freed it is nobody's before the last copy into it
        return memory

    def copy(self, source: Tensor, target: Tensor) -> Event:
        """See `Device.copy`."""
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            target.copy_(source, non_blocking=True)
        return self._copies.record_event()

    def wait(self, event: Event) -> None:
        """See `Device.wait`."""
        torch.cuda.current_stream(self._device).wait_event(event)


def _unpin(copies: torch.cuda.Stream, address: int) -> None:
    copies.synchronize()
    torch.cuda.cudart().cudaHostUnregister(address)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer that does not stay: its parameters, its weights on the host, and where they are in each buffer."""

    parameters: Sequence[nn.Parameter]
    weights: Tensor
    places: Sequence[Sequence[Tensor]]


@dataclass(slots=True)
class _Buffer:
    index: int
    memory: Tensor
    layer: int = _NO_LAYER
    """Number of the layer whose weights are there, or on their way."""
    copied: Event = None


class StreamedLayers:
    """Layers that take turns in buffers, in the order in which they compute; after the last comes the first, for the next run.

    One run at a time. One that fails leaves its buffers to the next, which has them filled again.
    """

    def __init__(self, modules: Sequence[nn.Module], hosts: Sequence[Tensor], buffers: Sequence[Tensor], device: Device) -> None:
        """Move the modules' weights into `hosts`, and have the first ones copied."""
        self._device = device
        self._layers = [_layer(module, host, buffers) for module, host in zip(modules, hosts, strict=True)]
        self._buffers = deque(_Buffer(index, memory) for index, memory in enumerate(buffers))
        self._begin(0)
        for number, module in enumerate(modules):
            module.register_forward_pre_hook(partial(self._before, number))
            module.register_forward_hook(partial(self._after, number))

    def _before(self, number: int, *_: Any) -> None:
        """Let a layer compute as soon as its weights are there."""
        if self._buffers[0].layer != number:
            self._begin(number)
        buffer, layer = self._buffers[0], self._layers[number]
        self._device.wait(buffer.copied)
        _point(layer.parameters, layer.places[buffer.index])

    def _after(self, number: int, *_: Any) -> None:
        """Give a layer's buffer to the next one that is in none."""
        self._fill(number + len(self._buffers))

    def _begin(self, number: int) -> None:
        for following in range(number, number + len(self._buffers)):
            self._fill(following)

    def _fill(self, number: int) -> None:
        buffer = self._buffers.popleft()
        self._buffers.append(buffer)
        layer, buffer.layer = number % len(self._layers), _NO_LAYER  # until the copy is on its way: it may fail
        weights = self._layers[layer].weights
        buffer.copied = self._device.copy(weights, buffer.memory[: len(weights)])
        buffer.layer = layer


def stream_layers(model: nn.Module, layers: Sequence[nn.Module], budget_bytes: int, device: Device) -> LayerPlan:
    """Move a model's parameters to the device, those of as many layers as the budget allows for good; return what was decided.

    Raises:
        ConfigError: The budget is too small, there is not as much memory, or a layer shares weights with something else.
    """
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    of_layers = [list(layer.parameters()) for layer in layers]
    if any(uses[id(parameter)] > 1 for parameter in chain(*of_layers)):
        raise ConfigError("weights cannot be streamed: a layer shares some of them with another part of the model")
    in_layers = {id(parameter) for parameter in chain(*of_layers)}
    others = [parameter for parameter in model.parameters() if id(parameter) not in in_layers]
    sizes = [_size(parameters) for parameters in of_layers]
    plan = plan_layers(sizes, _size(others), budget_bytes)
    staying = [others, *(parameters for number, parameters in enumerate(of_layers) if number not in plan.streamed)]
    # One allocation, which is no larger than the budget: of many the allocator would round each up.
    memory = device.device_memory(plan.held_bytes).split([*map(_size, staying), *[plan.buffer_bytes] * BUFFERS])
    for parameters, place in zip(staying, memory[:-BUFFERS], strict=True):
        _move(parameters, place)
    if plan.streamed:
        streamed = [sizes[number] for number in plan.streamed]
        hosts = device.host_memory(sum(streamed)).split(streamed)
        StreamedLayers([layers[number] for number in plan.streamed], hosts, memory[-BUFFERS:], device)
    return plan


def _layer(module: nn.Module, host: Tensor, buffers: Sequence[Tensor]) -> _Layer:
    parameters = list(module.parameters())
    places = [_views(buffer, parameters) for buffer in buffers]
    _move(parameters, host)
    _point(parameters, places[0])  # so that the whole model says that it is on the device
    return _Layer(parameters, host, places)


def _move(parameters: Sequence[nn.Parameter], memory: Tensor) -> None:
    for parameter, view in zip(parameters, _views(memory, parameters), strict=True):
        view.copy_(parameter.data)
        parameter.data = view


def _point(parameters: Sequence[nn.Parameter], views: Sequence[Tensor]) -> None:
    for parameter, view in zip(parameters, views, strict=True):
        parameter.data = view


def _views(memory: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Lay tensors out in memory, one behind the other; return where each is."""
    views, at = [], 0
    for tensor in tensors:
        views.append(memory[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape))
        at += _aligned(tensor.nbytes)
    return views


def _size(tensors: Sequence[Tensor]) -> int:
    return sum(_aligned(tensor.nbytes) for tensor in tensors)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
