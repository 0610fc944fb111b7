"""A spike of `perf.jobs`: jobs come at many times the rate at which they can be computed, beside interactive requests.

The gateway is one of its own that keeps few jobs open, so that the spike meets that bound and what was accepted before it can
be waited for. It ends with a look at every job that was accepted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from perf.jobs.clients import are_open, ask_at, jobs_in
from perf.jobs.report import Run
from perf.servers.serving import attached

_TIMES = 10
_BACKLOG_S = 20.0
"""So long the jobs that may be open take to be computed, alone."""
_LEAST_OPEN = 20
_DRAINED_TIMEOUT_S = 300.0
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Spike:
    """Load of a spike: the jobs and the interactive requests that come, and their rates."""

    jobs: Sequence[bytes]
    jobs_per_s: float
    """Jobs that can be computed in the long run."""
    interactive: Sequence[bytes]
    interactive_per_s: float
    seconds: float

    def run(self, triton: Mapping[str, str], callers: ProcessPoolExecutor) -> Run:
        """Run it before this Triton. Raises RuntimeError: the jobs do not come to an end."""
        most = max(_LEAST_OPEN, int(self.jobs_per_s * _BACKLOG_S))
        with attached(triton, variables={"TIDEGATE_JOBS_OPEN_PER_TENANT": str(most)}) as gateway:
            address = gateway.addresses["http"]
            interactive = callers.submit(ask_at, address, list(self.interactive), self.interactive_per_s, self.seconds)
            per_s = _TIMES * self.jobs_per_s
            coming = callers.submit(ask_at, address, list(self.jobs), per_s, self.seconds, wanted=202, may_be_refused=True)
            asked, handed_in = interactive.result(), coming.result()
            began_s = time.monotonic()
            _await_end(address)
            drained_s = time.monotonic() - began_s
            lost = len(handed_in.jobs - jobs_in(address, "succeeded"))
        return Run(
            len(asked.latencies_ms) / asked.seconds,
            *(float(np.percentile(asked.latencies_ms, percent)) for percent in (50, 99)),
            accepted=len(handed_in.jobs),
            refused=handed_in.refused,
            accepting_p99_ms=float(np.percentile(handed_in.latencies_ms, 99))
            if handed_in.latencies_ms.size
            else math.nan,  # all were refused
            drained_s=drained_s,
            errors=asked.errors + handed_in.errors,
            lost=lost,
        )


def _await_end(address: str) -> None:
    """Wait until no job is open. Raises RuntimeError: some are for too long."""
    deadline_s = time.monotonic() + _DRAINED_TIMEOUT_S
    while are_open(address):
        if time.monotonic() > deadline_s:
            raise RuntimeError("the jobs of the spike do not come to an end")
        time.sleep(_POLL_S)
