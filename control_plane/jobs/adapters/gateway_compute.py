"""Computes jobs by gateways, over HTTP; implements `jobs/ports.Compute` for runners in processes of their own.

A gateway computes an attempt by the inference service that everybody uses, below its callers' requests, so what is idle
there is known there. A gateway that is away, or stopping, is passed over. While one computes it is asked whether it
lives: an attempt may wait for minutes behind callers, a gateway that is frozen would hold it for as long. While jobs are
claimed the gateways are asked which models are loaded.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import orjson

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
_PASSED_OVER = frozenset((400, 404, 429, 503))
"""Answers of a gateway that computes nothing now, or cannot read a record of this version: another one may."""
_COUNTED = {
    413: "the gateway takes no body of this size",  # or it would be tried for ever
    500: "the gateway failed at it",  # nor a job that meets a defect
    502: "the gateway has gone, says what is before it",  # perhaps of this very job
    504: "the gateway does not answer, says what is before it",
}
"""Answers that make an attempt: another one may end no better."""
_LIVE = HttpRequest(b"GET", b"/v2/health/live")
_LOADED = HttpRequest(b"POST", b"/v2/repository/index", body=b'{"ready":true}')
_LOADED_TIMEOUT_S = 5.0
_LOADED_EVERY_S = 0.5
"""Pause between two looks at what is loaded, while jobs are claimed; what is computed meanwhile shows at once."""
_ASKED_EVERY_S = 5.0
"""Pause between two questions, and time for an answer."""
_SILENCES = 3
"""Questions without an answer, one after the other, after which a gateway counts as frozen: one whose event loop is
merely late answers the first."""


class _Silent(Exception):
    """The gateway does not even say whether it lives."""


class _Gateway:
    """Client of one gateway, which notices that the gateway is frozen."""

    def __init__(self, client: HttpUpstream, asked_every_s: float) -> None:
        self._client = client
        self._asked_every_s = asked_every_s
        self._is_silent = False

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """Raises UpstreamUnavailable, DeadlineExceeded, _Silent (nothing was sent: it still says nothing)."""
        if self._is_silent and not await self.is_live():
            raise _Silent
        self._is_silent = False
        try:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._watch(), name="gateway-watch")
                try:
                    return await self._client.send(request, timeout_s=_TIMEOUT_S)
                finally:
                    watch.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def close(self) -> None:
        await self._client.close()

    async def _watch(self) -> None:
        """Raises DeadlineExceeded once the gateway has said nothing to several questions."""
        silences = 0
        while silences < _SILENCES:
            await asyncio.sleep(self._asked_every_s)
            silences = 0 if await self.is_live() else silences + 1
        self._is_silent = True
        raise DeadlineExceeded("the gateway says nothing any more")

    async def is_live(self) -> bool:
        """Whether the gateway says in time that it lives."""
        try:
            await self._client.send(_LIVE, timeout_s=self._asked_every_s)
        except (UpstreamUnavailable, DeadlineExceeded):
            return False
        return True

    async def loaded(self) -> frozenset[str] | None:
        """Return the models that are loaded; None: it does not say."""
        try:
            answer = await self._client.send(_LOADED, timeout_s=_LOADED_TIMEOUT_S)
            return frozenset(line["name"] for line in orjson.loads(answer.body)) if answer.status == 200 else None
        except (UpstreamUnavailable, DeadlineExceeded, ValueError, KeyError, TypeError):
            return None


class GatewayCompute:
    """Client of the gateways that compute jobs, each in turn; `run` follows which models they have loaded."""

    def __init__(
        self,
        gateways: Sequence[HttpUpstream],
        *,
        asked_every_s: float = _ASKED_EVERY_S,
        model_of: Callable[[str], str] = lambda name: name,
    ) -> None:
        """While a gateway computes it is asked every `asked_every_s` whether it lives, and has as long to answer. `model_of`
        says to which model a route leads, and returns any other name.
        """
        self._gateways = [_Gateway(client, asked_every_s) for client in gateways]
        self._model_of = model_of
        self._loaded: frozenset[str] | None = None
        """None: no gateway has said what is loaded."""
        self._computed: dict[str, int] = {}
        """Models that were computed, so are loaded, too, and the number of the look that had begun last: the next one that is
        answered knows better."""
        self._looks = 0
        self._is_claiming = asyncio.Event()
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
                answer = await gateway.send(HttpRequest(b"POST", target_of(job).encode(), [], attempt))
            except _Silent:
                why = "the gateway says nothing"
                continue
            except UpstreamUnavailable as exc:
                if not exc.is_not_sent:
                    raise TryAgain(f"the gateway that computed it has gone: {exc}", was_computed=True) from exc
                why = str(exc)
                continue
            except DeadlineExceeded as exc:
                raise TryAgain(f"no gateway has answered: {exc}", was_computed=True) from exc
            if answer.status == 200:
                return self._noted(decode_outcome(answer.body))
            why = _text_of(answer)
            if answer.status in _COUNTED:
                raise TryAgain(f"{_COUNTED[answer.status]}: {why}", was_computed=True)
            if answer.status not in _PASSED_OVER:
                _log.error("a gateway refuses to compute jobs: %s", why)
                break
        raise TryAgain(f"no gateway computes it now: {why}", was_computed=False, is_crowded=True)

    async def away(self) -> list[int]:
        """Return which of the gateways say nothing now, by their places in the list."""
        are_live = await asyncio.gather(*(gateway.is_live() for gateway in self._gateways))
        return [number for number, is_live in enumerate(are_live) if not is_live]

    def is_hot(self, model: str) -> bool:
        """Whether a gateway has the model loaded; of all of them so while none says."""
        self._is_claiming.set()
        name = self._model_of(model)
        return self._loaded is None or name in self._loaded or name in self._computed

    async def run(self) -> None:
        """Follow which models are loaded, while jobs are claimed, until cancelled."""
        while True:
            await self._is_claiming.wait()
            self._is_claiming.clear()
            await self.look()
            await asyncio.sleep(_LOADED_EVERY_S)

    async def look(self) -> None:
        """Ask the gateways which models are loaded."""
        self._looks += 1
        number = self._looks
        found = [each for each in await asyncio.gather(*(gateway.loaded() for gateway in self._gateways)) if each is not None]
        if found:  # else what was known holds: while a Triton loads it may not say in time
            self._loaded = frozenset().union(*found)
            self._computed = {name: at for name, at in self._computed.items() if at >= number}

    def _noted(self, computed: Computed) -> Computed:
        """Note that a model is loaded, if it has answered itself, and no cache for it."""
        if computed.usage is not None and computed.usage.requests > computed.usage.cache_hits:
            self._computed[computed.model] = self._looks
        return computed

    async def close(self) -> None:
        """Close the connections to the gateways."""
        for gateway in self._gateways:
            await gateway.close()


def _text_of(answer: HttpAnswer) -> str:
    return f"{answer.status} {bytes(answer.body[:300]).decode(errors='replace')}"
