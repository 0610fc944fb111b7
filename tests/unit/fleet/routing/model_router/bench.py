"""How a load fails in these tests, and what refused requests are told."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from control_plane.core.errors import ModelLoadFailed, Overloaded

FAILS = ModelLoadFailed("its weights are missing")


async def refused(work: Coroutine[Any, Any, object], text: str | None = None) -> float:
    """Return after how many seconds a refused request should come again; the refusal is a 503."""
    with pytest.raises(Overloaded, match=text) as caught:
        await work
    assert caught.value.retry_after_s is not None
    return caught.value.retry_after_s
