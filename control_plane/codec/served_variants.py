"""Which variants are served, out of Triton's metrics page: `tidegate_served_variant{model, reason, variant, version} 1`.

`python_backends/runtime/served_variant.py` writes it. Source: Prometheus' exposition format 0.0.4.
"""

from __future__ import annotations

import re

from control_plane.domain.model import ServedVariant

_METRIC = b"tidegate_served_variant{"
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def read_served_variants(page: bytes) -> dict[str, ServedVariant]:
    """By model, of those that have a variant; of one that is being loaded anew the one that is told last."""
    lines = [line.decode("utf-8", "replace") for line in page.splitlines() if line.startswith(_METRIC)]
    told = [dict(_LABEL.findall(line)) for line in lines]
    return {
        _plain(labels["model"]): ServedVariant(_plain(labels["variant"]), _plain(labels.get("reason", "")))
        for labels in told
        if labels.get("model") and labels.get("variant")
    }


def _plain(value: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], value)
