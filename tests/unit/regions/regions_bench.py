"""Fake link to another region."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from control_plane.core.errors import DeadlineExceeded
from control_plane.protocols.http1 import HttpAnswer, make_answer


@dataclass
class Link:
    """Link to a region that answers probes after a while, or not at all."""

    round_trip_s: float = 0.01
    is_silent: bool = False
    error: Exception | None = None
    answer: Callable[[], HttpAnswer] = lambda: make_answer(200)
    is_closed: bool = False
    http: Any = None
    grpc: Any = None
    got: list[float] = field(default_factory=list)
    """The time that each request was given."""

    def head_for(self, head: Any) -> Any:
        return head

    async def probe(self, *, timeout_s: float) -> None:
        if self.is_silent:
            await asyncio.sleep(timeout_s)
            raise DeadlineExceeded("no answer")
        await asyncio.sleep(self.round_trip_s)
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        self.is_closed = True
