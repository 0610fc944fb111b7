"""Renders the long list of an answer in steps: of 10,000 files at once it would hold up everybody for some 30 ms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import orjson

from control_plane.core.algorithms.steps import Steps

ItemT = TypeVar("ItemT")

_AT_ONCE = 200


def list_steps(items: Iterable[ItemT], view_of: Callable[[ItemT], dict[str, Any]]) -> Steps[orjson.Fragment]:
    """Render what `view_of` shows of each item as a list in JSON, to be put into what is around it."""
    rendered = list[bytes]()
    for item in items:
        rendered.append(orjson.dumps(view_of(item)))
        if len(rendered) % _AT_ONCE == 0:
            yield
    return orjson.Fragment(b"[" + b",".join(rendered) + b"]")
