"""Reads weights from a model's files into memory of a fixed size.

Weights are read, not mapped: a file that is cut while it is served fails a request, where a mapping would end
the process; and what is in memory is what was read, not what the kernel has not dropped yet. No O_DIRECT,
which many file systems lack: what the kernel keeps of the file besides, it gives up before anything else.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from python_backends.runtime.errors import ConfigError, ExecutionError, RequestError
from python_backends.runtime.execution import Array, Tensors
from python_backends.runtime.streaming.onnx_graph import Weight
from python_backends.runtime.streaming.parts import Part, aligned

_ROOM = 1 << 26
"""Bytes that one call reads at most."""


@dataclass(frozen=True, slots=True)
class _Open:
    descriptor: int
    state: tuple[int, int]


class WeightFiles:
    """The files of a model's weights, held open: one that is replaced by a rename goes on as it was loaded."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Raises ConfigError: a file cannot be opened."""
        self._open: dict[Path, _Open] = {}
        for file in dict.fromkeys(files):
            try:
                descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                self._open[file] = _Open(descriptor, _state(descriptor))
            except OSError as exc:
                self.close()
                raise ConfigError(f"'{file}' cannot be read: {exc}") from exc

    def read(self, weight: Weight, buffer: memoryview, offset: int = 0) -> None:
        """Fill a buffer with a weight's bytes, from `offset` of it.

        Raises:
            ExecutionError: The file was changed in its place since it was opened, or cannot be read.
        """
        file, at = self._open[weight.file], weight.offset + offset
        try:
            while buffer:
                count = os.preadv(file.descriptor, [buffer[:_ROOM]], at)
                if not count:
                    break
                buffer, at = buffer[count:], at + count
            if _state(file.descriptor) != file.state or buffer:
                raise ExecutionError(f"'{weight.file}' was changed while the model was served from it: load the model again")
        except OSError as exc:
            raise ExecutionError(f"'{weight.file}' cannot be read: {exc}") from exc

    def rows(self, table: Weight, ids: Array) -> tuple[Array, Array]:
        """Return the rows of a table that `ids` name, each once, and `ids` by their places among them.

        Raises:
            RequestError: There is no such row.
            ExecutionError: As `read`.
        """
        count = table.shape[0]
        if ids.size and (ids.min() < -count or ids.max() >= count):
            raise RequestError(f"values must be in 0..{count - 1}, not {ids.min()}..{ids.max()}")
        wanted, places = np.unique(np.where(ids < 0, ids + count, ids), return_inverse=True)
        rows: Array = np.empty((len(wanted), *table.shape[1:]), table.dtype)
        size = table.size // count if count else 0
        for row, number in zip(rows, wanted.tolist(), strict=True):
            self.read(table, memoryview(row).cast("B"), number * size)
        return rows, places.reshape(ids.shape).astype(ids.dtype)

    def close(self) -> None:
        """Close the files."""
        while self._open:
            os.close(self._open.popitem()[1].descriptor)


class PartWeights:
    """Weights of parts, by their index: of some for good, of the others in two buffers in turn.

    Two consecutive parts are in the buffers: one that computes, and the next, which a thread reads meanwhile.
    After the last comes the first, so that it is there when the next request comes. Used by one thread at a time.
    """

    def __init__(self, files: WeightFiles, parts: Sequence[Part], buffer_bytes: int) -> None:
        """Reads what stays. Raises ExecutionError as `WeightFiles.read`."""
        self._files, self._parts = files, parts
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights")
        self._kept: dict[int, Tensors] = {}
        self._streamed = [index for index, part in enumerate(parts) if part.weights and not part.stays]
        for index, part in enumerate(parts):
            if index not in self._streamed:
                self._kept[index] = self._fill(index, _memory(part.weight_bytes))
        self._buffers = [_memory(buffer_bytes) for _ in self._streamed[:2]]
        self._held: list[int | None] = [None for _ in self._buffers]
        self._reads: list[Future[Tensors] | None] = [None for _ in self._buffers]

    def of(self, index: int) -> Tensors:
        """Return a part's weights by name, and have the next part's read; they are valid until `done`.

        Raises:
            ExecutionError: As `WeightFiles.read`; the next call tries again.
        """
        if index in self._kept:
            return self._kept[index]
        buffer = self._begin(index, beside=None)
        self._begin(self._after(index), beside=buffer)
        try:
            read = self._reads[buffer]
            assert read is not None
            return read.result()
        except BaseException:
            self._held[buffer] = None
            raise

    def done(self, index: int) -> None:
        """Let a part's weights go, for those of the part after the next."""
        if index in self._kept or len(self._streamed) <= 2:
            return
        following = self._after(index)
        if following in self._held:
            self._begin(self._after(following), beside=self._held.index(following))

    def close(self) -> None:
        """Wait for what is being read, and free the memory."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._kept.clear()
        self._buffers.clear()

    def _after(self, index: int) -> int:
        return self._streamed[(self._streamed.index(index) + 1) % len(self._streamed)]

    def _begin(self, index: int, *, beside: int | None) -> int:
        """Have a part read into a buffer other than `beside`, unless it is there; return its buffer. One thread reads, in the order
        asked: a buffer is never written by two."""
        if index in self._held:
            return self._held.index(index)
        buffer = next((number for number in range(len(self._buffers)) if number != beside), 0)
        self._held[buffer] = index
        self._reads[buffer] = self._thread.submit(self._fill, index, self._buffers[buffer])
        return buffer

    def _fill(self, index: int, memory: mmap.mmap | None) -> Tensors:
        found, at = dict[str, Array](), 0
        for name, weight in self._parts[index].weights.items():
            assert memory is not None
            view = memoryview(memory)[at : at + weight.size]
            self._files.read(weight, view)
            found[name] = np.frombuffer(view, weight.dtype).reshape(weight.shape)
            at += aligned(weight)
        return found


def _memory(size: int) -> Any:
    """Memory of its own mapping, which goes back to the system at once when it is let go."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) if size else None


def _state(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns
