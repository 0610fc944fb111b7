"""Decoder of the served variants on Triton's metrics page: `tidegate_served_variant{model, reason, variant,
version} SINCE`.

`python_backends/runtime/variants/served_variant.py` writes the metric. Source: Prometheus' exposition format 0.0.4.
"""

from __future__ import annotations

import re

from control_plane.core.model import ServedVariant

_METRIC = b"tidegate_served_variant{"
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def read_served_variants(page: bytes) -> dict[str, ServedVariant]:
    """Return the served variants by model; while a model is being reloaded, the one that was loaded last."""
    told = [each for line in page.splitlines() if line.startswith(_METRIC) and (each := _read(line.decode("utf-8", "replace")))]
    return {model: variant for _, model, variant in sorted(told, key=lambda each: each[0])}


def _read(line: str) -> tuple[float, str, ServedVariant] | None:
    """Return since when (seconds since 1970), which model, and which variant; None if the line cannot be
    read.
    """
    labels = {name: _plain(value) for name, value in _LABEL.findall(line)}
    try:
        since_s = float(line.rpartition(" ")[2])
    except ValueError:
        return None
    if not labels.get("model") or not labels.get("variant"):
        return None
    return since_s, labels["model"], ServedVariant(labels["variant"], labels.get("reason", ""))


def _plain(value: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], value)
