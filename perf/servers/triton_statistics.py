"""What Triton and our backends counted, read before and after a load: its statistics of models, and `tidegate_*` metrics of ours."""

from __future__ import annotations

import json
import re
import urllib.request
from collections import defaultdict

from control_plane.profiling.stages import Counted

METRICS_PERIOD_S = 0.7
"""Backends hand their counts over to Triton every half a second: who wants all of them waits that long."""

_TIMEOUT_S = 10.0
_VARIANT = re.compile(r'variant="([^"]+)"')
_SAMPLE = re.compile(r"^(tidegate_\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


def statistics(address: str, model: str) -> Counted:
    """What Triton at this HTTP address has counted of a model until now."""
    return Counted.of(json.loads(_get(f"http://{address}/v2/models/{model}/stats")))


def metrics(address: str, model: str) -> dict[str, float]:
    """Our backends' metrics of one model by name, as the page at this address has them now, summed over other labels."""
    return read_metrics(_get(f"http://{address}/metrics").decode(), model)


def read_metrics(page: str, model: str) -> dict[str, float]:
    """Sum a model's metrics on a page in Prometheus' text format."""
    values: dict[str, float] = defaultdict(float)
    for name, labels, value in _SAMPLE.findall(page):
        if f'model="{model}"' in labels:
            values[name] += float(value)
    return dict(values)


def served_variants(address: str, model: str) -> list[str]:
    """Return the variants that a model of ours has computed with, by its metrics on the page at this address."""
    return read_variants(_get(f"http://{address}/metrics").decode(), model)


def read_variants(page: str, model: str) -> list[str]:
    """Read the variants that a page in Prometheus' text format tells of."""
    labels = [labels for _, labels, value in _SAMPLE.findall(page) if f'model="{model}"' in labels and float(value)]
    return sorted({variant for each in labels for variant in _VARIANT.findall(each)})


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
        data: bytes = answer.read()
    return data
