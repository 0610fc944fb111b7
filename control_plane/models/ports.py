"""Models: where they come from, what is loaded, and who may load."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from control_plane.core.fingerprint import Fingerprint, ModelContents
from control_plane.core.model import ModelOverride
from control_plane.models.domain.description import DescribedModel, Tier
from control_plane.models.domain.model_build import BuildEvent
from control_plane.models.domain.model_source import ModelSource, SourceFile, WarmCopy


class ModelRepository(Protocol):
    """The folders that models come from, placed under the root that Triton reads."""

    def names(self) -> list[str]:
        """Every model in the sources now. Raises StartupError when two sources hold one name."""

    def place_all(self) -> None:
        """Place every model that can be placed, and remove placed ones whose source is gone."""

    def place(self, name: str) -> Sequence[str]:
        """Bring the placed copy (of an ensemble's composing models too) up to the source; which models these are, itself first.
        Raises ModelNotFound; ModelLoadFailed: it cannot be placed."""

    def require_loadable(self, name: str) -> None:
        """Raise ModelLoadFailed where it can be told without Triton that Triton could not load it."""

    def with_steps(self, name: str) -> list[str]:
        """The model after every model that it needs, if it is an ensemble. Raises ModelNotFound, ModelLoadFailed."""


class LoadWatch(Protocol):
    """Watches over the loads of one Triton."""

    async def carry_out(self, models: Sequence[str], load: Callable[[float], Awaitable[None]], *, timeout_s: float) -> None:
        """Do `load`, which is given its time limit and loads the first of `models` (the others are an ensemble's
        steps) into the Triton that runs now, and see to it that it ends in about `timeout_s`.

        Raises what it raises; ModelLoadFailed and DeadlineExceeded with all that is known of why.
        """


class ModelBuilder(Protocol):
    """The recipes of the model repositories."""

    def build(self) -> AsyncGenerator[BuildEvent]:
        """Build what is not up to date, leaving the CPUs to whoever answers requests; closing it ends the build. Raises OSError."""


class ModelDescriptions(Protocol):
    """What the model repositories say of their models."""

    def read(self) -> Mapping[str, DescribedModel]:
        """By name; reads files, so a thread calls it. What cannot be read is left out."""


class Stop(Protocol):
    """Tells a thread to end what it does."""

    def is_set(self) -> bool: ...


class ModelStore(Protocol):
    """Where models come from that are on no disk here. It reads itself, so threads call it; each call has a deadline of its own, and ends
    soon after `stop` is set. Each raises StoreUnavailable."""

    @property
    def url(self) -> str:
        """As it may be shown."""

    def names(self, stop: Stop) -> list[str]:
        """Every model in it now."""

    def describe(self, name: str, stop: Stop) -> ModelSource:
        """Its files now. Raises ModelNotFound; ModelLoadFailed: they cannot be a model's."""

    def read(self, name: str, path: str, span: range, stop: Stop) -> Sequence[bytes]:
        """So many bytes of a file from there, in pieces. Raises ModelLoadFailed, as passing: there are fewer, or it is gone."""

    def close(self) -> None: ...


class PartialCopy(Protocol):
    """A warm copy that is being fetched; what an earlier attempt has brought is there already."""

    @property
    def new_bytes(self) -> int:
        """How many this attempt has brought."""

    @property
    def done_bytes(self) -> int:
        """How many are there."""

    def fetch(self, file: SourceFile, read: Callable[[range], Sequence[bytes]], stop: Stop) -> None:
        """Bring what is missing of it, and verify all of it. Raises ModelLoadFailed, as passing: it is damaged; Overloaded: the disk
        is full; as `read`."""

    def finish(self) -> WarmCopy:
        """Put it in the place of what is held of the model, in one step, once every file is there. Raises Overloaded."""


class WarmTier(Protocol):
    """Copies of models on this machine. It reads and writes files, so threads call it."""

    @property
    def max_bytes(self) -> int: ...

    def open(self) -> list[WarmCopy]:
        """What is held, least recently used first. Raises StartupError: it cannot be written, or another process has it."""

    def path(self, name: str) -> Path: ...

    def use(self, copy: WarmCopy) -> bool:
        """Note that it is used; False when a file is not as it was written."""

    def is_sound(self, copy: WarmCopy, stop: Stop) -> bool:
        """Whether every file's digest is what it was; reads all of it."""

    def begin(self, source: ModelSource) -> PartialCopy:
        """Fetch a copy, or go on with it. Raises Overloaded: the disk is full."""

    def remove(self, name: str) -> None:
        """From sight in one step."""

    def partial_bytes(self, but: Collection[str]) -> int:
        """Taken by copies that nobody fetches now; `but` are models that somebody does."""

    def drop_partials(self, but: Collection[str]) -> None: ...

    def drop_partial(self, name: str) -> None: ...

    def close(self) -> None: ...


class MoveObserver(Protocol):
    """Is told of every move of a model from one tier to another."""

    def moved(self, model: str, *, source: Tier, target: Tier, size_bytes: int, took_s: float) -> None: ...

    def move_failed(self, model: str, *, source: Tier, target: Tier) -> None: ...


class ModelReading(Protocol):
    """What loads read of the disk. Reads files itself, so threads call it; each method raises ModelLoadFailed."""

    def with_steps(self, name: str, override: ModelOverride | None) -> list[str]:
        """The model and, of an ensemble, every model that its load loads too, as their configurations are now."""

    def read(self, name: str, override: ModelOverride | None) -> ModelContents:
        """What a load would read now."""

    def make_look_changed(self, name: str) -> None:
        """Have Triton's next load read it anew, whether it has changed or not."""


class FingerprintBoard(Protocol):
    """Every process that may answer with what a model has answered before."""

    async def publish(self, changes: Mapping[str, Fingerprint | None]) -> None:
        """Return when all of them go by it; None is unknown."""

    async def doubt(self, models: Iterable[str]) -> None:
        """They may soon be loaded here in contents that are not certain: what other servers have does not stand for them."""

    async def forget(self, models: Iterable[str]) -> None:
        """What is unknown of them is unknown since they are not loaded here any more."""


class ModelAdministration(Protocol):
    """Loading and unloading, as both doors call it: `models/model_service`, or the way to it from a worker process."""

    async def load(self, name: str, override: ModelOverride | None = None) -> object:
        """Return when it is ready. A caller that leaves does not end the load.

        Raises:
            InvalidRequest: the name cannot be a model's. ModelNotFound: no repository has it. ModelLoadFailed: with
                Triton's own text and code. DeadlineExceeded, UpstreamUnavailable.
        """

    async def unload(self, name: str, *, unload_dependents: bool = False) -> object:
        """Return when Triton has accepted it, for a model it does not know too. Raises as `load`, but not ModelNotFound; StoreUnavailable:
        a fleet cannot remember it."""
