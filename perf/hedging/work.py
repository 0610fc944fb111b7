"""Kinds of requests that `perf.hedging` sends: how long the model `straggle` is to sleep for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perf.load.echo_requests import framed, grpc_request


@dataclass(frozen=True, slots=True)
class Work:
    """Kind of request to the model `straggle`, which sleeps for `usual_s` and, for some requests, for `more_s` beyond that."""

    usual_s: float
    part: float
    """Part of the requests (0 to 1) that takes longer."""
    more_s: float
    heeds: bool
    """Whether a request that takes longer ends when it is cancelled."""

    @property
    def mean_s(self) -> float:
        return self.usual_s + self.part * self.more_s

    @property
    def kinds_s(self) -> Sequence[float]:
        """The times that a request may take."""
        return (self.usual_s, self.usual_s + self.more_s) if self.part else (self.usual_s,)

    def frame(self, name: str, count: int) -> bytes:
        """The message to the model or route of this name, with so many numbers, at least four."""
        numbers = np.zeros(count, dtype=np.float32)
        numbers[:4] = (self.usual_s, self.part, self.more_s, self.heeds)
        return framed(grpc_request(name, "SECONDS", numbers))
