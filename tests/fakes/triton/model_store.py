"""In-memory object store of models that can be slow, break off, change and lie; and an observer that records
moves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from control_plane.core.errors import ModelLoadFailed, ModelNotFound, StoreUnavailable
from control_plane.models.domain.description import Tier
from control_plane.models.domain.model_source import ModelSource, SourceFile
from control_plane.models.ports import Stop


class FakeModelStore:
    """In-memory object store: `models` maps name and path to contents; `reads` are the byte ranges that were
    requested."""

    def __init__(self, models: dict[str, dict[str, bytes]], url: str = "fake://cold") -> None:
        self.url = url
        self.models = models
        self.reads: list[tuple[str, str, range]] = []
        self.listings = 0
        self.is_away = False
        self.is_closed = False
        self.may_read = threading.Event()
        self.may_read.set()
        self.may_list = threading.Event()
        self.may_list.set()
        self.on_read: Callable[[str, range], None] = lambda path, span: None
        self.change: Callable[[bytes], bytes] = lambda piece: piece

    def names(self, stop: Stop) -> list[str]:
        self.listings += 1
        while not self.may_list.wait(0.01) and not stop.is_set():
            pass
        self._require_here()
        return sorted(self.models)

    def describe(self, name: str, stop: Stop) -> ModelSource:
        self._require_here()
        if name not in self.models:
            raise ModelNotFound(f"no model {name!r}")
        files = (SourceFile(path, len(content), str(hash(content))) for path, content in sorted(self.models[name].items()))
        return ModelSource(name, tuple(files))

    def read(self, name: str, path: str, span: range, stop: Stop) -> Sequence[bytes]:
        self.reads.append((name, path, span))
        while not self.may_read.wait(0.01):
            if stop.is_set():
                raise StoreUnavailable("stopped")
        self._require_here()
        self.on_read(path, span)
        content = self.models.get(name, {}).get(path, b"")
        if len(content) < span.stop:
            raise ModelLoadFailed(f"{path} is shorter than it was", is_transient=True)
        return [self.change(content[span.start : span.stop])]

    def close(self) -> None:
        self.is_closed = True

    def _require_here(self) -> None:
        if self.is_away:
            raise StoreUnavailable(f"model store {self.url} cannot be read")


class Moves:
    """`models/ports.MoveObserver` that records its calls."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int]] = []
        self.failed: list[tuple[str, str]] = []

    def moved(self, model: str, *, source: Tier, target: Tier, size_bytes: int, took_s: float) -> None:
        assert took_s >= 0
        self.seen.append((model, f"{source} to {target}", size_bytes))

    def move_failed(self, model: str, *, source: Tier, target: Tier) -> None:
        self.failed.append((model, f"{source} to {target}"))
