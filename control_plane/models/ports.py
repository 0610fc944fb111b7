"""Ports of the models folder: repositories and stores that models come from, the warm tier, loads, and
fingerprints.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from control_plane.core.fingerprint import Fingerprint, ModelContents
from control_plane.core.model import ModelOverride
from control_plane.models.domain.description import DescribedModel, Tier
from control_plane.models.domain.model_build import BuildEvent
from control_plane.models.domain.model_source import ModelSource, SourceFile, WarmCopy


class ModelRepository(Protocol):
    """Model repository: the source folders of models, and their placed copies under the root that Triton
    reads.
    """

    def names(self) -> list[str]:
        """Return every model in the sources now; called in threads. Raises StartupError: two sources have a model of one
        name.
        """

    def place_all(self) -> None:
        """Place every model that can be placed, and remove placed ones whose source is gone; called in
        threads."""

    def place(self, name: str) -> Sequence[str]:
        """Bring the placed copies of a model, and of an ensemble's composing models, up to date with their
        sources.

        Returns the names of these models, the model itself first; called in threads. Raises ModelNotFound,
        ModelLoadFailed (it cannot be placed).
        """

    def require_loadable(self, name: str) -> None:
        """Raise ModelLoadFailed if it is certain, without asking Triton, that Triton could not load the
        model.
        """

    def ensemble_closure(self, name: str) -> list[str]:
        """Return an ensemble's composing models, direct and indirect, then the model itself. Raises
        ModelNotFound, ModelLoadFailed.
        """


class LoadWatch(Protocol):
    """Watchdog of the loads of one Triton, which may hang or fail without a reason."""

    async def carry_out(self, models: Sequence[str], load: Callable[[float], Awaitable[None]], *, timeout_s: float) -> None:
        """Call `load` with its time limit, and make sure that it ends in about `timeout_s`.

        `load` loads the first of `models` (the others are an ensemble's steps) into the Triton that runs now.
        Raises what it raises; ModelLoadFailed and DeadlineExceeded carry all that is known of the reason.
        """


StubT = TypeVar("StubT")


class ModelStubs(Protocol[StubT]):
    """Python processes (stubs) of the models of one Triton that runs on this machine."""

    async def stubs_of(self, models: Collection[str]) -> Sequence[StubT]:
        """Return the living stubs of these models."""

    def end_stubs(self, stubs: Sequence[StubT]) -> None:
        """Kill those of these stubs that still run, as what is left of a copy that was replaced."""

    def kill_stubs(self, stubs: Sequence[StubT]) -> None:
        """Kill these stubs of a copy that hangs; their deaths are noticed as any others."""


class ModelBuilder(Protocol):
    """Builder of models' artefacts by the recipes in the model repositories."""

    def build(self) -> AsyncGenerator[BuildEvent]:
        """Build what is not up to date, at low priority so that requests keep the CPUs; closing the generator
        ends the build.

        Raises OSError.
        """


class ModelDescriptions(Protocol):
    """Reader of what model repositories declare about their models."""

    def read(self) -> Mapping[str, DescribedModel]:
        """Return the descriptions by model; those that cannot be read are left out. It reads files, so call
        it in a thread.
        """


class Stop(Protocol):
    """Cancellation flag for work in a thread, such as a `threading.Event`."""

    def is_set(self) -> bool: ...


class ModelStore(Protocol):
    """Cold store of models, such as an object store. Its methods block, so call them in threads; each has a
    deadline of its own, ends soon after `stop` is set, and raises StoreUnavailable.
    """

    @property
    def url(self) -> str:
        """URL without secrets, as it may be logged and shown."""

    def names(self, stop: Stop) -> list[str]:
        """Return every model in the store now."""

    def describe(self, name: str, stop: Stop) -> ModelSource:
        """List a model's files as they are now. Raises ModelNotFound, ModelLoadFailed (they cannot be a
        model's).
        """

    def read(self, name: str, path: str, span: range, stop: Stop) -> Sequence[bytes]:
        """Read a span of bytes of a file, in pieces. Raises ModelLoadFailed with `is_transient`: the file is
        gone or too short.
        """

    def close(self) -> None: ...


class PartialCopy(Protocol):
    """Warm copy that is being fetched; it resumes what an earlier attempt has fetched."""

    @property
    def new_bytes(self) -> int:
        """Bytes that this attempt has fetched."""

    @property
    def done_bytes(self) -> int:
        """Bytes that are there, those of earlier attempts included."""

    def fetch(self, file: SourceFile, read: Callable[[range], Sequence[bytes]], stop: Stop) -> None:
        """Fetch what is missing of a file, and verify all of it.

        Raises ModelLoadFailed with `is_transient` (the file is damaged), StoreUnavailable with `is_full` (so
        is the disk), and what `read` raises.
        """

    def finish(self) -> WarmCopy:
        """Replace the model's copy by this one, atomically; every file must have been fetched. Raises
        StoreUnavailable.
        """


class WarmTier(Protocol):
    """Warm tier: copies of models on this machine. Its methods read and write files, so call them in
    threads.
    """

    @property
    def max_bytes(self) -> int: ...

    def open(self) -> list[WarmCopy]:
        """Take over the copies that are there and return them, least recently used first.

        Raises StartupError: the tier cannot be written to, or another process uses it.
        """

    def path(self, name: str) -> Path: ...

    def use(self, copy: WarmCopy) -> bool:
        """Record a use of a copy; False if a file differs in size or time from what was written."""

    def is_sound(self, copy: WarmCopy, stop: Stop) -> bool:
        """Whether every file has the recorded digest; reads the whole copy."""

    def start_fetch(self, source: ModelSource) -> PartialCopy:
        """Start or resume the fetch of a copy. Raises StoreUnavailable: the disk is full."""

    def remove(self, name: str) -> None:
        """Remove a model's copy; it disappears atomically."""

    def partial_bytes(self, but: Collection[str]) -> int:
        """Return the bytes of unfinished copies that are not being fetched now; `but` are the models that
        are.
        """

    def drop_partials(self, but: Collection[str]) -> None: ...

    def drop_partial(self, name: str) -> None: ...

    def close(self) -> None: ...


class MoveObserver(Protocol):
    """Observer of models' moves between tiers, for metrics."""

    def moved(self, model: str, *, source: Tier, target: Tier, size_bytes: int, took_s: float) -> None: ...

    def move_failed(self, model: str, *, source: Tier, target: Tier) -> None: ...


class ModelReading(Protocol):
    """Reader of what a load of a model depends on. Its methods read files, so call them in threads; each
    raises ModelLoadFailed.
    """

    def ensemble_closure(self, name: str, override: ModelOverride | None) -> list[str]:
        """Return the model and, for an ensemble, every model that its load loads as well, by their present
        configurations.
        """

    def read(self, name: str, override: ModelOverride | None) -> ModelContents:
        """Digest what a load would read now."""

    def mark_changed(self, name: str) -> None:
        """Make Triton's next load read the model anew, whether it has changed or not."""


class FingerprintBoard(Protocol):
    """Board on which fingerprints of loaded models are published to every process that has a response
    cache.
    """

    async def publish(self, changes: Mapping[str, Fingerprint | None]) -> None:
        """Publish fingerprints by model, None for unknown; return when every process applies them."""

    async def make_unknown(self, models: Iterable[str]) -> None:
        """Mark models as unknown on this server before a load: until it is certain what was loaded here, the
        contents that other servers have do not stand for them.
        """

    async def forget(self, models: Iterable[str]) -> None:
        """Drop models that are not loaded on this server any more; what other servers have of them counts
        again.
        """


class ModelAdministration(Protocol):
    """Loading and unloading of models, as frontends call it: `models/model_service`, or a worker process's
    stub for it.
    """

    async def load(self, name: str, override: ModelOverride | None = None) -> object:
        """Load a model and return when it is ready. A caller that leaves does not end the load.

        Raises:
            InvalidRequest: the name cannot be a model's.
            ModelNotFound: no repository has the model.
            ModelLoadFailed: Triton's own text and code.
            DeadlineExceeded, UpstreamUnavailable.
        """

    async def unload(self, name: str, *, unload_dependents: bool = False) -> object:
        """Unload a model and return when Triton has accepted it, which it does for a model it does not know
        as well.

        Raises what `load` raises but ModelNotFound; and StoreUnavailable if a fleet cannot record it.
        """
