"""What requests look like, as `--mix` files say it: weighted texts, or perf_analyzer's own JSON (input_data.md).

    95<TAB>a short text        weight and text, or a text alone (weight 1); blank lines and lines from `#` on do not count
    {"data": [{"TEXT": ["a short text"]}, ...]}

perf_analyzer sends the entries in turn, over and over, so texts are repeated by weight and mixed before they go there.
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
"""Of a mix by weights: one in two hundred is the rarest that shows."""

_WEIGHTED = re.compile(r"(\d+(?:\.\d+)?)\t(.*)", re.ASCII)


def is_json(text: str) -> bool:
    """Whether it is perf_analyzer's JSON rather than texts."""
    return text.lstrip().startswith("{")


def parse_json(text: str) -> str:
    """The same text, once it is known to be what perf_analyzer reads. Raises InvalidRequest."""
    try:
        found: Any = json.loads(text)
    except ValueError as exc:
        raise InvalidRequest(f"the mix is no JSON: {exc}") from exc
    if not isinstance(found.get("data"), list) or not found["data"]:
        raise InvalidRequest('the mix must be perf_analyzer\'s JSON: {"data": [{"INPUT": [...]}, ...]}, with one entry or more')
    return text


def parse_texts(text: str) -> list[WeightedText]:
    """The texts with their weights, of which one at least is above zero. Raises InvalidRequest."""
    # Not splitlines(), to which more than the end of a line is one.
    lines = [line.rstrip("\r") for line in text.split("\n") if line.strip() and not line.startswith("#")]
    found = [(float(match[1]), match[2]) if (match := _WEIGHTED.fullmatch(line)) else (1.0, line) for line in lines]
    if not any(weight for weight, _ in found):
        raise InvalidRequest("the mix has no texts; write WEIGHT<TAB>TEXT, or a text, on each line")
    return found


def requests_of(texts: Sequence[WeightedText], tensor: str) -> str:
    """perf_analyzer's JSON of requests with one text each in `tensor`: by weight, in an order that is always the same."""
    repeated = [text for (_, text), count in zip(texts, _counts([weight for weight, _ in texts]), strict=True) for _ in range(count)]
    random.Random(1).shuffle(repeated)  # noqa: S311 - an order, no secret
    if len(repeated) % 2 == 0:
        # The n-th of c requests in flight takes every c-th entry. An odd number lets each, c being 8 or 32, come to all of them.
        repeated.append(max(texts)[1])
    return json.dumps({"data": [{tensor: [text]} for text in repeated]}, ensure_ascii=False)


def _counts(weights: Sequence[float]) -> list[int]:
    """How often each comes: in proportion, rounded, but once at least if it has a weight at all."""
    total = sum(weights)
    requests = max(_REQUESTS, len(weights))
    return [max(1, round(requests * weight / total)) if weight else 0 for weight in weights]
