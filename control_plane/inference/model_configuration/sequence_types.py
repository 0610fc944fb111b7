"""Check of requests in sequences: their ids must be of the type that the model takes as its control input CORRID.

Triton 24.10 does not look (25.01 does, core #425). It copies a string of up to 128 bytes to where a model of numbers has
8 bytes of its heap, and gives a model of strings, for a number, up to 124 bytes of its own stack. An ensemble hands
its id to its steps. Called by `inference/inference`, of the requests that have an id; it tells, too, which of their models batch
by sequences.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson

from control_plane.core.errors import InvalidRequest, UpstreamFailed
from control_plane.core.infer_call import InferCall
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.inference.model_configuration.model_configs import ModelConfigs
from control_plane.models.fingerprints import Fingerprints

_TEXT = "TYPE_STRING"


@dataclass(frozen=True, slots=True)
class SequenceConfig:
    """Sequence batching of one model, as its configuration has it: whether it batches so, and by ids of which types."""

    types: frozenset[str]
    """Data types of its control input CORRID; empty where it has none, and takes all ids."""
    steps: tuple[tuple[str, str], ...] = ()
    """Names and versions of an ensemble's models; empty for the version that their policies choose."""
    has_sequences: bool = False
    """Whether it batches by sequences."""


class SequenceTypes:
    """Guard of Triton against ids of sequences that it would copy beyond their place."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._configs = ModelConfigs(dispatch, Fingerprints(), sequence_config)

    async def require(self, call: InferCall, *, timeout_s: float) -> list[str]:
        """Require that the model of a call, as it goes to Triton, takes ids of its sequence's type; return the names of that
        model and its steps that batch by sequences.

        Raises InvalidRequest, ModelNotFound, UpstreamUnavailable, UpstreamFailed, DeadlineExceeded.
        """
        batching = []
        async for name, found in self._models_of(call, asyncio.get_running_loop().time() + timeout_s):
            if any((each == _TEXT) is not call.sequence_is_text for each in found.types):
                wanted = "a number" if call.sequence_is_text else "a string"
                raise InvalidRequest(f"model {name!r} takes the ids of sequences as another type: 'sequence_id' must be {wanted}")
            if found.has_sequences:
                batching.append(name)
        return batching

    async def _models_of(self, call: InferCall, deadline_s: float) -> AsyncIterator[tuple[str, SequenceConfig]]:
        """Give the model of a call and all that are its steps, by name. Raises as `ModelConfigs.get` does."""
        models = [(call.model_name, call.model_version)]
        for name, version in models:  # which grows by the steps of ensembles
            found = await self._configs.get(name, version, timeout_s=deadline_s - asyncio.get_running_loop().time())
            yield name, found
            models += [each for each in found.steps if each not in models]


def sequence_config(config: bytes | bytearray) -> SequenceConfig:
    """Read how a model batches by sequences, from its configuration as Triton gives it. Raises UpstreamFailed."""
    try:
        model = orjson.loads(config)
        inputs = _part(model, "sequence_batching").get("control_input", [])
        controls = [control for each in inputs for control in each["control"]]
        types = frozenset(control["data_type"] for control in controls if control["kind"] == "CONTROL_SEQUENCE_CORRID")
        steps = _part(model, "ensemble_scheduling").get("step", [])
        has_sequences = model.get("sequence_batching") is not None
        return SequenceConfig(types, tuple((step["model_name"], _version(step)) for step in steps), has_sequences)
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as exc:
        raise UpstreamFailed("Triton does not say how the model takes the ids of sequences") from exc


def _part(model: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = model.get(name) or {}
    return found


def _version(step: dict[str, Any]) -> str:
    version = str(step.get("model_version", "-1"))
    return "" if version.startswith("-") else version
