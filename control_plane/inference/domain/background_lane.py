"""Recognises, by Triton's configuration, models with a background lane: callers' requests interrupt what it computes for jobs.

Source: model_config.proto as JSON; `background` is a parameter of `python_backends/text_encoder`, and of ensembles whose
steps have such lanes.
"""

from __future__ import annotations

from typing import Any

import orjson

from control_plane.core.errors import UpstreamFailed

_PARAMETER = "background"
_KINDS = frozenset(("KIND_CPU", "KIND_AUTO"))
"""Kinds of instances that have such a lane: a GPU is not interrupted."""


def has_background_lane(config: bytes | bytearray) -> bool:
    """Whether the model of this configuration has a background lane. Raises UpstreamFailed: it is no configuration."""
    try:
        return _has_lane(orjson.loads(config))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise UpstreamFailed("Triton's answer is not a model's configuration") from exc


def _has_lane(config: dict[str, Any]) -> bool:
    says_so = config.get("parameters", {}).get(_PARAMETER, {}).get("string_value") == "true"
    return says_so and all(group.get("kind", "KIND_AUTO") in _KINDS for group in config.get("instance_group", ()))
