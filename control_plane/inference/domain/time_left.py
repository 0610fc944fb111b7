"""Recognises, by Triton's configuration, models that want to know how much time each request has left.

Source: model_config.proto as JSON; `time_left` is a parameter of `python_backends/text_encoder`, and of ensembles whose steps
compute nothing whose time is over.
"""

from __future__ import annotations

import orjson

from control_plane.core.errors import UpstreamFailed

_PARAMETER = "time_left"


def wants_time_left(config: bytes | bytearray) -> bool:
    """Whether the model of this configuration is to be told. Raises UpstreamFailed: it is no configuration."""
    try:
        parameters = orjson.loads(config).get("parameters") or {}
        return bool(parameters.get(_PARAMETER, {}).get("string_value") == "true")
    except (orjson.JSONDecodeError, AttributeError) as exc:
        raise UpstreamFailed("Triton's answer is not a model's configuration") from exc
