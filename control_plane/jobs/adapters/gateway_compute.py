"""Computes jobs by gateways, over HTTP; implements `jobs/ports.Compute` for runners in processes of their own.

A gateway computes an attempt by the inference service that everybody uses, below its callers' requests, so what is idle
there is known there. A gateway that is away, or stopping, is passed over.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from control_plane.concurrency.weighted_semaphore import WeightedSemaphore
from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.jobs.attempts import decode_outcome, encode_attempt, target_of
from control_plane.jobs.domain.job import Job
from control_plane.jobs.ports import Computed, TryAgain
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.triton.ports import HttpUpstream

_log = logging.getLogger(__name__)

_TIMEOUT_S = 900.0
"""Time for an attempt: a chunk of a batch may wait for its turn behind callers, line by line."""
_HELD_BYTES = 512 << 20
"""Bodies that are held at a time; a larger one is held alone."""
_PASSED_OVER = frozenset((400, 404, 429, 502, 503))
"""Answers of a gateway that computes nothing now, or cannot read a record of this version: another one may."""


class GatewayCompute:
    """Computes jobs by one of several gateways, each in turn."""

    def __init__(self, gateways: Sequence[HttpUpstream]) -> None:
        self._gateways = list(gateways)
        self._turns = itertools.cycle(range(len(self._gateways)))
        self._room = WeightedSemaphore(_HELD_BYTES)

    @asynccontextmanager
    async def room_for(self, size_bytes: int) -> AsyncIterator[None]:
        held = min(size_bytes, _HELD_BYTES)
        try:
            await self._room.acquire(held, deadline_s=asyncio.get_running_loop().time() + _TIMEOUT_S)
        except TimeoutError as exc:
            raise TryAgain("other bodies take the room for this one", was_computed=False, is_crowded=True) from exc
        try:
            yield
        finally:
            self._room.release(held)

    async def compute(self, job: Job, body: bytes) -> Computed:
        first = next(self._turns)
        attempt, why = encode_attempt(job, body), ""
        for gateway in (*self._gateways[first:], *self._gateways[:first]):
            try:
                answer = await gateway.send(HttpRequest(b"POST", target_of(job).encode(), [], attempt), timeout_s=_TIMEOUT_S)
            except UpstreamUnavailable as exc:
                if not exc.is_not_sent:
                    raise TryAgain(f"the gateway that computed it has gone: {exc}", was_computed=True) from exc
                why = str(exc)
                continue
            except DeadlineExceeded as exc:
                raise TryAgain(f"no gateway has answered: {exc}", was_computed=True) from exc
            if answer.status == 200:
                return decode_outcome(answer.body)
            why = _told(answer)
            if answer.status == 413:
                raise TryAgain(f"the gateway takes no body of this size: {why}", was_computed=True)  # or it would be tried for ever
            if answer.status == 500:
                raise TryAgain(f"the gateway failed at it: {why}", was_computed=True)  # nor a job that meets a defect
            if answer.status not in _PASSED_OVER:
                _log.error("a gateway refuses to compute jobs: %s", why)
                break
        raise TryAgain(f"no gateway computes it now: {why}", was_computed=False, is_crowded=True)

    def is_hot(self, model: str) -> bool:
        """True: which models are loaded is known to the gateways alone."""
        return True

    async def close(self) -> None:
        """Close the connections to the gateways."""
        for gateway in self._gateways:
            await gateway.close()


def _told(answer: HttpAnswer) -> str:
    return f"{answer.status} {bytes(answer.body[:300]).decode(errors='replace')}"
