"""What is loaded under a model's name, as far as answers depend on it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprint:
    """Identifies the content of one load of a model; compared by identity, so that the same content loaded again is
    another one to whoever holds it."""

    digest: bytes
    """32 bytes, over the files of all its versions, its configuration, its backend's code and all that of what it needs: the
    same content has the same one everywhere."""

    keeps_answers: bool
    """Whether its owner declares equal requests to have equal answers (`response_cache { enable: true }`), and they could have."""

    is_repeatable: bool = True
    """Whether they could have: neither it nor a step of it is decoupled or has sequences."""


@dataclass(frozen=True, slots=True)
class ModelContents:
    """What a load of one model reads, apart from its steps, and what its configuration's file says of where to look."""

    digest: bytes
    parameters: frozenset[str]
    """Values of its configuration's string parameters: they may name files elsewhere, which are in `digest` then."""
    steps: frozenset[str]
    """The models that an ensemble's steps name; none of any other."""
    is_brought: bool = False
    """Its files came with the load, and Triton has read none of the repository's."""
    calls_others: bool = False
    """Its code may ask other models while it answers (business logic scripting), and which ones cannot be known."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A loaded model's configuration as Triton has it: after overrides, and completed."""

    content: bytes = field(repr=False)
    """The same for the same configuration."""
    parameters: frozenset[str] = frozenset()
    """As in `ModelContents`."""
    steps: frozenset[str] = frozenset()
    response_cache: bool = False
    is_repeatable: bool = True
    """Neither decoupled nor with sequences."""
    is_batched: bool = True
    """Whether the first dimension of its inputs is that of the batch."""

    def is_of(self, contents: ModelContents) -> bool:
        """Whether they look in the same places; what is elsewhere has not been read."""
        return self.parameters == contents.parameters and self.steps == contents.steps


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One that Triton has, with certainty."""

    contents: ModelContents
    config: LoadedConfig


Models = Mapping[str, LoadedModel | None]
"""By name; None where nobody knows what there is."""


def fingerprint_of(name: str, models: Models, *, server_version: str) -> Fingerprint | None:
    """None unless the model and all that it needs are certain."""
    needed = needed_by(name, models)
    certain = {each: model for each in needed if (model := models.get(each)) is not None}
    if len(certain) < len(needed):
        return None
    parts = [server_version.encode(), name.encode()]
    for each, model in sorted(certain.items()):
        parts += (each.encode(), model.contents.digest, model.config.content)
    is_repeatable = all(certain[each].config.is_repeatable for each in with_steps(name, models))
    return Fingerprint(digest_of(parts), is_repeatable and certain[name].config.response_cache, is_repeatable)


def needed_by(name: str, models: Models) -> set[str]:
    """All that its answers depend on: the model, an ensemble's steps, and every model there is where one of these calls others."""
    own = with_steps(name, models)
    return own.union(models) if any(_calls_others(models.get(each)) for each in own) else own


def with_steps(name: str, models: Models) -> set[str]:
    """The model and, of an ensemble, its steps and theirs."""
    found, open_ = set[str](), [name]
    while open_:
        each = open_.pop()
        if each not in found:
            found.add(each)
            model = models.get(each)
            open_ += model.config.steps if model is not None else ()
    return found


def callers(models: Models) -> set[str]:
    """Those that call others."""
    return {each for each, model in models.items() if _calls_others(model)}


def _calls_others(model: LoadedModel | None) -> bool:
    return model is not None and model.contents.calls_others


def dependents_of(names: Collection[str], models: Models) -> set[str]:
    """Those of the `models` that need one of `names`, themselves among them."""
    return {each for each in models if not needed_by(each, models).isdisjoint(names)}


def digest_of(parts: Iterable[bytes]) -> bytes:
    """Of these parts in this order, and of no others: 32 bytes."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
