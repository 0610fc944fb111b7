"""What the recipes' program says while it builds (`python_backends/export/progress.py`): a JSON object a line."""

from __future__ import annotations

import orjson

from control_plane.models.domain.model_build import BuildEvent, BuildEventKind


def read_build_event(line: bytes) -> BuildEvent | None:
    """None: the line is something else, such as a library's remark."""
    try:
        told = orjson.loads(line)
        model, _, variant = str(told.get("target", "")).partition("/")
        text = str(told.get("text", ""))
        return BuildEvent(BuildEventKind(told["event"]), model, variant, text, told.get("may_be_chosen") is True)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
