"""Decoder of the progress messages of the build program (`python_backends/export/progress.py`): one JSON
object per line.
"""

from __future__ import annotations

import orjson

from control_plane.models.domain.model_build import BuildEvent, BuildEventKind


def read_build_event(line: bytes) -> BuildEvent | None:
    """Decode a line; None if it is something else, such as a library's output."""
    try:
        told = orjson.loads(line)
        model, _, variant = str(told.get("target", "")).partition("/")
        text = str(told.get("text", ""))
        return BuildEvent(BuildEventKind(told["event"]), model, variant, text, told.get("is_auto_eligible") is True)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
