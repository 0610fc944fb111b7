"""Parses the file of typical requests (`--mix`): weighted texts, or perf_analyzer's own JSON (input_data.md).

    95<TAB>a short text        weight and text, or a text alone (weight 1); blank lines and lines starting
    with # are skipped {"data": [{"TEXT": ["a short text"]}, ...]}

perf_analyzer sends the entries in turn, over and over, so texts are repeated by weight and shuffled
beforehand. Pure.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

from control_plane.core.errors import InvalidRequest

WeightedText = tuple[float, str]

_REQUESTS = 200
"""Entries made from weighted texts, so that shares down to one in two hundred are kept."""

_WEIGHTED = re.compile(r"(\d+(?:\.\d+)?)\t(.*)", re.ASCII)


def is_json(text: str) -> bool:
    """Whether it is perf_analyzer's JSON rather than texts."""
    return text.lstrip().startswith("{")


def parse_json(text: str) -> str:
    """Return the text unchanged if perf_analyzer can read it. Raises InvalidRequest."""
    try:
        found: Any = json.loads(text)
    except ValueError as exc:
        raise InvalidRequest(f"the mix is not JSON: {exc}") from exc
    if not isinstance(found.get("data"), list) or not found["data"]:
        raise InvalidRequest('the mix must be perf_analyzer\'s JSON: {"data": [{"INPUT": [...]}, ...]}, with one entry or more')
    return text


def parse_texts(text: str) -> list[WeightedText]:
    """Parse texts with their weights, at least one of them above zero. Raises InvalidRequest."""
    # Not splitlines(), which also splits at other characters, such as form feeds and U+2028.
    lines = [line.rstrip("\r") for line in text.split("\n") if line.strip() and not line.startswith("#")]
    found = [(float(match[1]), match[2]) if (match := _WEIGHTED.fullmatch(line)) else (1.0, line) for line in lines]
    if not any(weight for weight, _ in found):
        raise InvalidRequest("the mix has no texts; write WEIGHT<TAB>TEXT, or a text, on each line")
    return found


def requests_of(texts: Sequence[WeightedText], tensor: str) -> str:
    """Make perf_analyzer's JSON of requests with one text each in `tensor`, by weight, in a reproducible
    order.
    """
    repeated = [text for (_, text), count in zip(texts, _counts([weight for weight, _ in texts]), strict=True) for _ in range(count)]
    random.Random(1).shuffle(repeated)  # noqa: S311 - for an order, not for a secret
    if len(repeated) % 2 == 0:
        # The n-th of c callers sends every c-th entry. With an odd number of entries each caller comes to all
        # of them, as c is usually a power of two.
        repeated.append(max(texts)[1])
    return json.dumps({"data": [{tensor: [text]} for text in repeated]}, ensure_ascii=False)


def _counts(weights: Sequence[float]) -> list[int]:
    """Return how often each text occurs: in proportion to its weight, but at least once if the weight is not
    0.
    """
    total = sum(weights)
    requests = max(_REQUESTS, len(weights))
    return [max(1, round(requests * weight / total)) if weight else 0 for weight in weights]
