"""Keeps what is known of the other regions of one process, and sends requests to them; implements
`inference/dispatch/region_failover.OtherRegions`.

Each region has a task that probes it every second, and nothing waits for that. A region that does not answer a probe gets no
requests until it does, and those that are there are taken back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, QueryOfDeath, UpstreamUnavailable
from control_plane.core.infer_call import Frontend
from control_plane.inference.dispatch.region_failover import REGION_HEADER
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.inference.requests import SendableOn
from control_plane.regions.domain.region import Region
from control_plane.regions.domain.standing import Asked, Standing, nearest
from control_plane.regions.domain.verdict import RegionVerdict, Streamed, verdict_of
from control_plane.regions.ports import RegionLink

AnswerT = TypeVar("AnswerT")

_log = logging.getLogger(__name__)

PROBE_EVERY_S, PROBE_TIMEOUT_S = 1.0, 1.0
_STRANGERS_EVERY_S = 0.1
"""Time between requests that leave for a model which no region is known to have: callers may send any name."""
_MAX_FOUND = 1000
_LACKS_MODEL_S, _REFUSES_CALLER_S, _LIMITS_CALLER_S, _FAILS_S, _UNREACHED_S = 30.0, 60.0, 1.0, 1.0, 1.0
"""How long no requests of a kind are sent that were refused or failed for it."""


@dataclass(slots=True, eq=False)
class _Peer:
    """One other region: what is known of it, its client, and the requests that are there."""

    standing: Standing
    link: RegionLink
    there: set[asyncio.Timeout] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Sent(Generic[AnswerT]):
    """Outcome of one request that was sent to another region: its answer, if any came, and the verdict on it."""

    answer: AnswerT | None
    verdict: RegionVerdict


class _CountedStream:
    """Streamed response (`triton/ports.HttpStream`) that is in flight in its region until it is closed, and has a connection there."""

    def __init__(self, stream: Streamed, standing: Standing) -> None:
        self.status = stream.status
        self.head = stream.head
        self.receive = stream.receive
        self._stream = stream
        self._standing: Standing | None = standing
        standing.in_flight += 1

    def close(self) -> None:
        self._stream.close()
        if self._standing is not None:
            self._standing.in_flight -= 1
            self._standing = None


class Regions:
    """The other regions, as one process knows them."""

    def __init__(self, links: Iterable[tuple[Region, RegionLink]], *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is the event loop's time."""
        self._peers = [_Peer(Standing(region), link) for region, link in links]
        self._now_s = now_s
        self._strangers_from_s = float("-inf")
        self._found = BoundedCache[str, bool].of_entries(_MAX_FOUND)
        """Models that another region has computed a request for, as callers name them."""
        self.totals: Counter[tuple[str, RegionVerdict]] = Counter()
        """Requests sent to other regions, by region and by what became of them."""

    @property
    def standings(self) -> list[Standing]:
        """The standing of each region, in the order of the file that lists them."""
        return [peer.standing for peer in self._peers]

    def full_for_s(self, standing: Standing) -> float:
        """Return for how many more seconds a region is left alone since it had no idle room."""
        return max(0.0, standing.window.full_until_s - self._now_s())

    @property
    def is_any_well(self) -> bool:
        return any(peer.standing.is_well for peer in self._peers)

    def asked(self) -> None:
        for peer in self._peers:
            peer.standing.credit.asked()

    async def run(self) -> None:
        """Probe the regions until cancelled; then close the connections to them."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for peer in self._peers:
                    tasks.create_task(self._watch(peer), name=f"region-{peer.standing.region.name}")
        finally:
            for peer in self._peers:
                await peer.link.close()

    def would_take(self, running: AuthorizedRequest, *, left_s: float) -> bool:
        """See `inference/dispatch/region_failover.OtherRegions.would_take`."""
        asked = Asked(running.principal.tenant, running.named_model, left_s, running.frontend)
        return nearest(self.standings, asked, self._now_s()) is not None

    async def ask(
        self, request: SendableOn[AnswerT], running: AuthorizedRequest, *, left_s: float, is_model_missing: bool
    ) -> AnswerT | None:
        """See `inference/dispatch/region_failover.OtherRegions.ask`."""
        now_s, tenant, model = self._now_s(), running.principal.tenant, running.named_model
        is_stranger = is_model_missing and model not in self._found.keys
        if is_stranger and now_s < self._strangers_from_s:
            return None
        standing = nearest(self.standings, Asked(tenant, model, left_s, running.frontend), now_s)
        if standing is None:
            return None
        if is_stranger:
            self._strangers_from_s = now_s + _STRANGERS_EVERY_S
        peer = next(each for each in self._peers if each.standing is standing)
        sent: _Sent[AnswerT] = await self._send(peer, request, left_s - standing.round_trip_s)
        answer, verdict = sent.answer, sent.verdict
        self._learn(standing, verdict, tenant, model, running.frontend)
        name = standing.region.name
        if answer is not None and verdict is RegionVerdict.ANSWERED:
            running.answered_in(name)
            counted = cast("AnswerT", _CountedStream(answer, standing)) if isinstance(answer, Streamed) else answer
            return request.with_field(counted, REGION_HEADER, name)
        if isinstance(answer, Streamed):  # the page of a proxy in the region's place may come in pieces, too
            answer.close()
        if verdict is RegionVerdict.QUARANTINED:
            raise QueryOfDeath(f"processes have died under the request in region {name}, so it is not computed here")
        if verdict in (RegionVerdict.LOST, RegionVerdict.FAILED) and not running.is_repeatable:
            how = "was lost while it had" if verdict is RegionVerdict.LOST else "has failed"
            raise UpstreamUnavailable(f"region {name} {how} the request, which it may have computed")
        return None

    async def _send(self, peer: _Peer, request: SendableOn[AnswerT], timeout_s: float) -> _Sent[AnswerT]:
        standing, scope = peer.standing, asyncio.timeout(None)
        standing.credit.spend()
        standing.in_flight += 1
        peer.there.add(scope)
        answer: AnswerT | None = None
        verdict = RegionVerdict.LEFT
        try:
            async with scope:
                answer = await request.send_on(peer.link, timeout_s=timeout_s)
            verdict = verdict_of(answer)
        except TimeoutError:
            if not scope.expired():
                raise
            verdict = RegionVerdict.LOST
        except UpstreamUnavailable as exc:
            verdict = RegionVerdict.UNREACHABLE if exc.is_not_sent else RegionVerdict.LOST
        except DeadlineExceeded:
            verdict = RegionVerdict.LOST
        finally:
            standing.in_flight -= 1
            peer.there.discard(scope)
            self.totals[standing.region.name, verdict] += 1
        return _Sent(answer, verdict)

    def _learn(self, standing: Standing, verdict: RegionVerdict, tenant: str, model: str, frontend: Frontend) -> None:
        """Note what an answer says of the requests that may be sent there next: of the caller's own, unless all would fare alike."""
        now_s = self._now_s()
        match verdict:
            case RegionVerdict.ANSWERED:
                standing.window.answered()
                self._found.keep(model, True)
            case RegionVerdict.FULL:
                standing.window.refused(now_s)
            case RegionVerdict.UNREACHABLE:
                standing.unreached(frontend, now_s + _UNREACHED_S)
            case RegionVerdict.MODEL_MISSING:
                self._found.forget(model)
                standing.shut(tenant, model, now_s + _LACKS_MODEL_S)
            case RegionVerdict.UNAUTHENTICATED:
                standing.shut(tenant, "", now_s + _REFUSES_CALLER_S)
            case RegionVerdict.DENIED:
                standing.shut(tenant, model, now_s + _REFUSES_CALLER_S)
            case RegionVerdict.LIMITED:
                standing.shut(tenant, "", now_s + _LIMITS_CALLER_S)
            case RegionVerdict.FAILED | RegionVerdict.LOST | RegionVerdict.INVALID | RegionVerdict.QUARANTINED:
                standing.shut(tenant, model, now_s + _FAILS_S)
            case RegionVerdict.LEFT:
                pass

    async def _watch(self, peer: _Peer) -> None:
        """Probe one region every second."""
        while True:
            began_s = self._now_s()
            try:
                await peer.link.probe(timeout_s=PROBE_TIMEOUT_S)
            except DeadlineExceeded:
                self._note_failure(peer.standing, "it says nothing")
                self._take_back(peer)
            except ControlPlaneError as exc:
                self._note_failure(peer.standing, str(exc))
            else:
                self._note_answer(peer.standing, self._now_s() - began_s)
            await asyncio.sleep(max(0.0, began_s + PROBE_EVERY_S - self._now_s()))

    def _note_answer(self, standing: Standing, round_trip_s: float) -> None:
        if standing.heard(round_trip_s):
            _log.info("region %s is well, %.1f ms away", standing.region.name, round_trip_s * 1e3)

    def _note_failure(self, standing: Standing, why: str) -> None:
        if standing.failed(why):
            _log.warning("region %s gets no requests: %s", standing.region.name, why)

    def _take_back(self, peer: _Peer) -> None:
        """Give up on the requests at a region that says nothing, whose callers would wait for their deadlines."""
        now_s = asyncio.get_running_loop().time()
        for scope in tuple(peer.there):
            scope.reschedule(now_s)
        peer.there.clear()
