"""Fingerprints of loaded models: digests over everything that a model's responses depend on.

They are part of the cache key, so a changed model never answers from the cache of the old one. Pure
functions; the files are read by `models/loaded_contents`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from control_plane.core.algorithms.closure import closure

DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprint:
    """Content of one load of a model.

    Compared by identity: a reload of the same content is a different load to whoever holds the fingerprint.
    """

    digest: bytes
    """32 bytes over the files of all versions, the configuration, the backend's code, and the same of every
    model that it depends on. Equal contents have equal digests on all gateways."""

    is_cacheable: bool
    """Whether responses may be cached: the configuration says so (`response_cache { enable: true }`), and
    `is_repeatable`."""

    is_repeatable: bool = True
    """Whether equal requests can have equal responses: neither the model nor a step of it is decoupled or has
    sequences."""

    may_be_computed_twice: bool = False
    """Whether the configuration says that computing a request twice does no harm (`tidegate_repeatable`)."""


@dataclass(frozen=True, slots=True)
class ModelContents:
    """Digest of the files that a load of one model reads, without its steps, and the references in its config
    file.
    """

    digest: bytes
    parameters: frozenset[str]
    """Values of the configuration's string parameters. They may name files elsewhere, which are then part of
    `digest`."""
    steps: frozenset[str]
    """Models that an ensemble's steps name; empty for other models."""
    comes_with_load: bool = False
    """Whether the files came with the load request, so that Triton read none of the repository's."""
    calls_others: bool = False
    """Whether its code may call other models while it answers (business logic scripting); which ones cannot
    be known."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A loaded model's configuration as Triton reports it: with overrides and auto-completed fields."""

    content: bytes = field(repr=False)
    """Canonical encoding: equal configurations have equal contents."""
    parameters: frozenset[str] = frozenset()
    """Values of its string parameters, as in `ModelContents`."""
    steps: frozenset[str] = frozenset()
    response_cache: bool = False
    is_repeatable: bool = True
    """Whether it is neither decoupled nor stateful (sequences)."""
    is_batched: bool = True
    """Whether the first dimension of its inputs is the batch."""
    may_be_computed_twice: bool = False
    """Whether it declares `tidegate_repeatable`."""

    def is_of(self, contents: ModelContents) -> bool:
        """Whether `contents` covers this configuration.

        If the loaded configuration refers to other files or steps than the config file, those were not read.
        """
        return self.parameters == contents.parameters and self.steps == contents.steps


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that Triton has loaded, with contents that are known for certain."""

    contents: ModelContents
    config: LoadedConfig


Models = Mapping[str, LoadedModel | None]
"""Model's name -> what is loaded; None where that is not certain."""


def fingerprint_of(name: str, models: Models, *, server_version: str) -> Fingerprint | None:
    """Compute a model's fingerprint; None unless the contents of the model and its dependencies are all
    certain.
    """
    needed = dependencies_of(name, models)
    certain = {each: model for each in needed if (model := models.get(each)) is not None}
    if len(certain) < len(needed):
        return None
    # The server's version counts too: another Triton may compute other responses with the same files.
    parts = [server_version.encode(), name.encode()]
    for each, model in sorted(certain.items()):
        parts += (each.encode(), model.contents.digest, model.config.content)
    is_repeatable = all(certain[each].config.is_repeatable for each in ensemble_closure(name, models))
    config = certain[name].config
    return Fingerprint(digest_of(parts), is_repeatable and config.response_cache, is_repeatable, config.may_be_computed_twice)


def dependencies_of(name: str, models: Models) -> set[str]:
    """Return all models that its responses depend on: itself, its steps, and every model if one of these
    calls others.

    A model whose code calls others (BLS) may call any model, so it depends on all of them.
    """
    own = ensemble_closure(name, models)
    return own.union(models) if any(_calls_others(models.get(each)) for each in own) else own


def ensemble_closure(name: str, models: Models) -> set[str]:
    """Return the model and, for an ensemble, its steps and their steps."""
    return set(closure(name, lambda each: model.config.steps if (model := models.get(each)) is not None else ()))


def callers(models: Models) -> set[str]:
    """Return the models whose code calls other models."""
    return {each for each, model in models.items() if _calls_others(model)}


def _calls_others(model: LoadedModel | None) -> bool:
    return model is not None and model.contents.calls_others


def dependents_of(names: Collection[str], models: Models) -> set[str]:
    """Return those of the `models` that depend on one of `names`, including `names` themselves."""
    return {
        each
        for each, model in models.items()
        if each in names or (_needs_others(model) and not dependencies_of(each, models).isdisjoint(names))
    }


def _needs_others(model: LoadedModel | None) -> bool:
    """Whether a model may depend on another one, as few do: each load asks this of all models."""
    return model is not None and (bool(model.config.steps) or model.contents.calls_others)


def digest_of(parts: Iterable[bytes]) -> bytes:
    """Return a digest of 32 bytes over these parts in this order."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:  # each with its length, so that other parts with the same concatenation differ
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
