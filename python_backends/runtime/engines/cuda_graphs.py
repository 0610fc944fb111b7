"""Records a PyTorch module as CUDA graphs, one per bucket of shapes: a small model then costs one kernel
launch, not hundreds.

Inputs are padded with zeros up to the bucket and outputs are cut back, which does not change them
(`Interface` says why). Inputs larger than every bucket run without a graph. The graphs share one memory pool.
That is safe because only one graph runs at a time, and its outputs are copied out before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from python_backends.runtime.engines.buckets import Buckets, cut, pad_into, steps
from python_backends.runtime.execution import Array
from python_backends.runtime.interface import Interface, Sizes

DEFAULT_LARGEST_BATCH = 64
SMALLEST, LARGEST = 16, 256

# PyTorch's documentation records after three runs: libraries choose their algorithms and workspaces in the
# first ones.
WARM_UP_RUNS = 3

Module = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class _Recording:
    """Recording of one bucket: its inputs and outputs as (host, device) pairs, and the function that replays
    the graph.
    """

    inputs: Sequence[tuple[Tensor, Tensor]]
    outputs: Sequence[tuple[Tensor, Tensor]]
    replay: Callable[[], object]


class Graphs(Protocol):
    """Port to a device that can record graphs; tests use a fake without a GPU."""

    def stream(self) -> AbstractContextManager[object]:
        """Return a context in which work goes to this device, on a stream of its own."""
        ...

    def host_tensor(self, array: Array) -> Tensor:
        """Return a copy in host memory that the device can access directly (DMA)."""
        ...

    def device_tensor(self, tensor: Tensor) -> Tensor:
        """Return a copy on the device."""
        ...

    def record(self, compute: Callable[[], Sequence[Tensor]]) -> tuple[Sequence[Tensor], Callable[[], object]]:
        """Return the outputs of `compute`, and a function that computes them again from and into the same
        tensors.
        """
        ...

    def synchronize(self) -> None:
        """Wait until all work on the stream is done."""
        ...


class CudaGraphs:
    """CUDA graphs on a GPU; implements `Graphs`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def stream(self) -> AbstractContextManager[object]:
        """See `Graphs.stream`."""
        stream: AbstractContextManager[object] = torch.cuda.stream(self._stream)
        return stream

    def host_tensor(self, array: Array) -> Tensor:
        """See `Graphs`. The memory is pinned: other memory is copied through a staging buffer."""
        return torch.from_numpy(array).pin_memory()

    def device_tensor(self, tensor: Tensor) -> Tensor:
        """See `Graphs.device_tensor`."""
        return tensor.to(self._device)

    def record(self, compute: Callable[[], Sequence[Tensor]]) -> tuple[Sequence[Tensor], Callable[[], object]]:
        """See `Graphs`. Runs `compute` a few times first, since libraries choose algorithms and workspaces in
        their first runs.
        """
        for _ in range(WARM_UP_RUNS):
            compute()
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            outputs = compute()
        return outputs, graph.replay

    def synchronize(self) -> None:
        """See `Graphs.synchronize`."""
        self._stream.synchronize()


class RecordedModule:
    """A PyTorch module as a function of NumPy arrays, recorded for every bucket."""

    def __init__(self, module: Module, interface: Interface, graphs: Graphs, buckets: Buckets) -> None:
        self._module, self._interface, self._graphs, self._buckets = module, interface, graphs, buckets
        self._lock = Lock()
        with torch.inference_mode(), graphs.stream():
            self._recordings = {tuple(sizes.values()): self._record(sizes) for sizes in buckets}

    def __call__(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Compute the outputs; calls take turns, as they would on the device anyway."""
        sizes = self._interface.sizes(arrays)
        bucket = self._buckets.choose(sizes)
        with self._lock, torch.inference_mode(), self._graphs.stream():
            if bucket is None:
                return self._run_as_it_is(arrays)
            return self._replay(self._recordings[tuple(bucket.values())], arrays, sizes)

    def _record(self, sizes: Sizes) -> _Recording:
        hosts = [self._graphs.host_tensor(np.zeros(spec.shape(sizes), spec.dtype)) for spec in self._interface.inputs]
        devices = [self._graphs.device_tensor(host) for host in hosts]
        outputs, replay = self._graphs.record(lambda: self._module(*devices))
        answers = [self._graphs.host_tensor(np.zeros(spec.shape(sizes), spec.dtype)) for spec in self._interface.outputs]
        return _Recording(list(zip(hosts, devices, strict=True)), list(zip(answers, outputs, strict=True)), replay)

    def _replay(self, recording: _Recording, arrays: Sequence[Array], sizes: Sizes) -> Sequence[Array]:
        for (host, device), array in zip(recording.inputs, arrays, strict=True):
            pad_into(host.numpy(), array)
            device.copy_(host, non_blocking=True)
        recording.replay()
        for host, device in recording.outputs:
            host.copy_(device, non_blocking=True)
        self._graphs.synchronize()
        pairs = zip(recording.outputs, self._interface.outputs, strict=True)
        return [cut(host.numpy(), spec.shape(sizes)) for (host, _), spec in pairs]

    def _run_as_it_is(self, arrays: Sequence[Array]) -> Sequence[Array]:
        hosts = [self._graphs.host_tensor(np.array(array)) for array in arrays]
        return [output.cpu().numpy() for output in self._module(*map(self._graphs.device_tensor, hosts))]


def buckets_for(interface: Interface, max_batch_size: int) -> Buckets:
    """Return buckets with batches in powers of two up to `max_batch_size` (0: 64), and other dimensions in
    steps up to 256.

    A smaller maximum of the model limits the other dimensions further.
    """
    names = dict.fromkeys(dim for spec in interface.inputs for dim in spec.dims if isinstance(dim, str))
    largest = max_batch_size or DEFAULT_LARGEST_BATCH
    batches = [*(1 << exponent for exponent in range((largest - 1).bit_length())), largest]
    return Buckets(
        {name: batches if name == "batch" else steps(SMALLEST, min(LARGEST, interface.maximum.get(name, LARGEST))) for name in names}
    )
