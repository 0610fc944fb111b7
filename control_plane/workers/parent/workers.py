"""Supervisor of the worker processes: keeps them running, sends them changes, serves their requests, sums
their counts.

The parent's side of `--workers N`; the worker's side is `app/worker`. Triton, the models and the admin API
stay with the parent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from math import inf
from typing import Protocol, TypeVar

from control_plane.core.algorithms.backoff import RestartLimits, count_failures, restart_delay_s
from control_plane.core.errors import StartupError
from control_plane.events.tenant_feeds import TenantFeeds
from control_plane.events.tenant_tap import Tapped
from control_plane.inference.domain.observation import Observation
from control_plane.models.ports import ModelAdministration
from control_plane.telemetry.request_counts import RequestCounts, total
from control_plane.triton.compute_time import OpenCharge
from control_plane.workers.messages import FromWorker, ToWorker
from control_plane.workers.messages.between_workers import FindingShared, HangSuspected, LoadReported
from control_plane.workers.messages.from_workers import (
    Alive,
    ArmsObserved,
    AskTurn,
    Charges,
    CountsReported,
    Drained,
    DrawTokens,
    EndTurn,
    FingerprintsAcknowledged,
    FollowTenants,
    Listening,
    LoadModel,
    ReadIndex,
    RequestsEnded,
    SilenceSuspected,
    StartFailed,
    TenantsTold,
    UnloadModel,
)
from control_plane.workers.messages.to_workers import (
    AnnounceDrain,
    CollectCharges,
    CollectFor,
    Drain,
    Listen,
    ReloadTls,
    RolloutGivenUp,
    WatchRequests,
)
from control_plane.workers.parent.findings import Findings
from control_plane.workers.parent.fingerprint_board import WorkersFingerprintBoard
from control_plane.workers.parent.fleet_publisher import FleetPublisher
from control_plane.workers.parent.live_workers import LiveWorkers
from control_plane.workers.parent.pending_changes import PendingChanges, carry_out, read_index
from control_plane.workers.parent.tenant_relay import TenantRelay
from control_plane.workers.parent.upstream_relay import UpstreamRelay
from control_plane.workers.parent.worker_handle import WorkerHandle
from control_plane.workers.ports import WorkerLauncher
from control_plane.workers.suspect_turns import WorkersTurns
from control_plane.workers.token_buckets import TokenBuckets
from control_plane.workers.worked_on import worked_on

T = TypeVar("T")

_log = logging.getLogger(__name__)

_START_ATTEMPTS = 3
_MAX_SILENCE_S = 30.0
"""Seconds after which a worker that says nothing is killed."""
_DRAIN_GRACE_S = 1.0
"""Seconds beyond a drain's own for a worker to say that it is over, before it is killed."""
_END_GRACE_S = 4.5
"""Seconds after its drain before a worker is killed, as many as Triton has; two are for its last spans, two for storing what it has
metered."""
_MAX_OBSERVED = 50_000
"""Observations that may wait for the rollouts' next tick; the oldest are dropped."""
_TELL_TIMEOUT_S = 0.25


class ChargeSink(Protocol):
    """Collects the charges of requests that have ended in any process: `metering/compute_charges`."""

    def include(self, charges: Iterable[OpenCharge]) -> None: ...


class Workers:
    """Supervisor of all workers over all their lives."""

    def __init__(self, *, count: int, launcher: WorkerLauncher, limits: RestartLimits | None = None) -> None:
        self._count = count
        self._launcher = launcher
        self._limits = limits or RestartLimits()
        self._live = LiveWorkers()
        self._retired = RequestCounts()
        self.suspect: Callable[[str, str, float], None] = lambda server, model, since_s: None
        """Told of a server, a model that seems to hang there, and since when."""
        self.findings = Findings()
        self.fingerprints = WorkersFingerprintBoard(self._live)
        self.upstream = UpstreamRelay(self._live.tell, self.fingerprints.known)
        self._fleet: FleetPublisher | None = None
        self._is_open = False
        self._has_opened = False
        self._is_stopping = False
        self._charges_asked = 0
        self._observed: deque[Observation] = deque(maxlen=_MAX_OBSERVED)
        self._buckets = TokenBuckets()
        self._turns = WorkersTurns()
        self._watch = WatchRequests(False)
        self._collect = CollectFor([])
        self._tenants: TenantRelay | None = None
        self.requests_ended: Callable[[list[bytes]], None] = lambda events: None
        """Told of requests that have ended, while they are watched."""

    def join_fleet(self, fleet: FleetPublisher) -> None:
        """Connect the workers to the fleet: they receive its view and send their load reports."""
        self._fleet = fleet
        fleet.begin(self._live.tell)

    @property
    def listening(self) -> int:
        """The number of workers that accept requests now."""
        return sum(worker.is_listening for worker in self._live)

    def counts(self, own: RequestCounts | None = None) -> RequestCounts:
        """The sum over all lives of all workers, and what this process has counted itself; for live workers as of their last
        message, at most a second old.

        What a worker has counted after its last message is lost when it is killed.
        """
        return total([self._retired, own or RequestCounts(), *(worker.counts for worker in self._live)])

    def degraded(self) -> list[str]:
        """Return what does not work as it should in the workers, a sentence each."""
        return list(dict.fromkeys(sentence for worker in self._live for sentence in worker.degraded))

    def oldest_s(self, server: str, model: str) -> float:
        """Return when the first request was sent to the model there that a worker has waited for since; infinity
        if there is none."""
        return min((sent_s for at, of, sent_s in self.awaited() if (at, of) == (server, model)), default=inf)

    def awaited(self) -> Iterator[tuple[str, str, float]]:
        """Yield the server, the model and the time it was sent of the oldest requests that workers wait for. Left out are those
        that were sent after a request that its caller, in any worker, gave up: they wait behind that one, so they do not show that
        the replica is busy with a long request."""
        given_up = {(at, of): sent_s for at, of, sent_s in worked_on(each for worker in self._live for each in worker.given_up).requests}
        for worker in self._live:
            yield from (each for each in worker.awaited if each[2] <= given_up.get(each[:2], inf))

    async def run(self, models: ModelAdministration, charges: ChargeSink) -> None:
        """Keep the workers running until `drain` and `end` have ended them; cancelling kills them.

        Raises:
            StartupError: they cannot work with these settings. Once all have listened, failing workers are
                restarted for ever instead.
        """
        self._charges = charges
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._count):
                tasks.create_task(self._keep(number, models), name=f"worker-{number}")

    async def open(self) -> None:
        """Let the workers open their ports; return when all have."""
        if self._fleet is not None:  # first, so that the first request finds the view of the fleet
            self._fleet.publish_changes()
        self._is_open = True
        for worker in self._live:
            self._let_listen(worker)
        await self._live.until(lambda: self.listening >= self._count)
        self._has_opened = True

    def announce_drain(self) -> None:
        """Let all workers say that they are not ready, while they serve everything; one that dies now is not
        replaced."""
        self._is_stopping = True
        self._live.tell(AnnounceDrain())

    async def drain(self, timeout_s: float) -> None:
        """Drain all workers, for `timeout_s` at most; return when none has requests in flight, the late ones by
        being killed. A second call with less time cuts the first one short."""
        self._is_stopping = True
        self._live.tell(Drain(timeout_s))
        await self._kill_after(timeout_s + _DRAIN_GRACE_S, lambda worker: not worker.is_drained)

    async def end(self) -> None:
        """Return when all workers have ended after their drain, the late ones by being killed."""
        await self._kill_after(_END_GRACE_S, lambda worker: True)

    async def _kill_after(self, timeout_s: float, is_late: Callable[[WorkerHandle], bool]) -> None:
        try:
            await asyncio.wait_for(
                self._live.until(lambda: not any(map(is_late, self._live))), timeout_s
            )  # not asyncio.timeout: see `supervisor._close`
        except TimeoutError:
            late = [worker for worker in self._live if is_late(worker)]
            _log.warning("%d workers did not end in time and are killed", len(late))
            for worker in late:
                worker.process.kill()

    async def collect_charges(self) -> None:
        """Collect the charges that wait for Triton's counts; a slow worker's charges come with a later
        collection."""
        self._charges_asked += 1
        number = self._charges_asked
        asked = list(self._live)
        self._live.tell(CollectCharges(number))
        with suppress(TimeoutError):
            async with asyncio.timeout(_TELL_TIMEOUT_S):
                await self._live.until(lambda: not any(worker.charges_collected < number and worker in self._live for worker in asked))

    def take_observed(self) -> list[Observation]:
        """Return what workers have observed of rollouts' requests since the last call."""
        taken = list(self._observed)
        self._observed.clear()
        return taken

    def give_up(self, rollout_id: str) -> None:
        """Have all workers send a rollout's requests to the route's present model."""
        self._live.tell(RolloutGivenUp(rollout_id))

    def watch_requests(self, is_watched: bool) -> None:
        """Have all workers, also later ones, tell `requests_ended` of requests, or no longer."""
        self._watch = WatchRequests(is_watched)
        self._live.tell(self._watch)

    def serve_tenants(self, feeds: TenantFeeds) -> TenantRelay:
        """Have workers, also later ones, tell what happens to the tenants that are followed, and send them these feeds."""
        feeds.changed = self._collect_for
        self._tenants = TenantRelay(feeds)
        return self._tenants

    def _collect_for(self, tenants: frozenset[str]) -> None:
        self._collect = CollectFor(sorted(tenants))
        self._live.tell(self._collect)

    def reload_tls(self) -> None:
        self._live.tell(ReloadTls())

    def _let_listen(self, worker: WorkerHandle) -> None:
        """Let a worker listen once it has acknowledged the fingerprints; the link keeps messages in order."""
        if self._is_open and worker.acknowledged >= 0 and not worker.was_told_to_listen:
            worker.was_told_to_listen = True
            worker.process.send(Listen())

    def _tell_worked_on(self) -> None:
        """Tell each worker what replicas work on for the others, where that has changed."""
        for worker in self._live:
            others = (each for each in self._live if each is not worker)
            found = worked_on(request for each in others for request in (*each.awaited, *each.given_up))
            if found != worker.told_worked_on:
                worker.told_worked_on = found
                worker.process.send(found)

    async def _keep(self, number: int, models: ModelAdministration) -> None:
        """Restart worker `number` whenever it ends, with a backoff that grows with failures and resets after
        a long life."""
        now_s = asyncio.get_running_loop().time
        failures = 0
        while True:
            started_s = now_s()
            reason = await self._run_worker(number, models)
            if self._is_stopping:
                return
            failures = count_failures(failures, life_s=now_s() - started_s, limits=self._limits)
            # At the start a worker that cannot run is an error of the operator's; later it is kept trying, as
            # others serve.
            if not self._has_opened and failures >= _START_ATTEMPTS:
                raise StartupError(f"worker {number} does not start: {reason}")
            delay_s = restart_delay_s(failures, limits=self._limits)
            _log.error("worker %d is restarted in %.1f s: %s", number, delay_s, reason)
            await asyncio.sleep(delay_s)

    async def _run_worker(self, number: int, models: ModelAdministration) -> str:
        try:
            process = await self._launcher.start(number)
        except StartupError as exc:
            if not self._has_opened:
                raise
            return str(exc)
        worker = WorkerHandle(process)
        self._live.add(number, worker)
        try:
            for message in self._snapshot():
                process.send(message)
            pending = PendingChanges(models, self._fleet)
            async with asyncio.TaskGroup() as pending.tasks:
                watch = pending.tasks.create_task(
                    worker.watch(number, on_freeze=partial(self._turns.left, worker.process.send)), name=f"watch-worker-{number}"
                )
                await self._listen_to(number, worker, pending)
                worker.is_listening = False
                watch.cancel()
                # Nobody is left to be told the results. The loads themselves go on
                # (`ModelAdministration.load`); waiting for them here would delay the worker's restart.
                pending.cancel()
            return await _within(_END_GRACE_S, process.wait())
        except TimeoutError:
            return f"it said nothing for {_MAX_SILENCE_S:g} s, or did not end"
        finally:
            process.kill()  # also on cancellation; does nothing to a process that has ended
            self._turns.left(process.send)
            if self._tenants is not None:
                self._tenants.left(process.send)
            self._retired = total([self._retired, worker.counts.retired()])  # totals must not drop when a worker ends
            self._live.remove(number)

    def _snapshot(self) -> Iterator[ToWorker]:
        """Yield what a worker has to know that starts now."""
        yield from self.upstream.snapshot() if self._fleet is None else self._fleet.snapshot()
        yield from self.findings.snapshot()
        # The worker listens when it has acknowledged them (`_let_listen`).
        yield from self.fingerprints.snapshot()
        if self._watch.is_watched:
            yield self._watch
        if self._collect.tenants:
            yield self._collect
        if self._is_stopping:
            # It was being started when the others were told.
            yield Drain(0)

    async def _listen_to(self, number: int, worker: WorkerHandle, pending: PendingChanges) -> None:
        """Handle a worker's messages until its link closes or it hangs: a healthy worker sends its counts
        every second."""
        with suppress(TimeoutError):
            while (message := await _within(_MAX_SILENCE_S, worker.process.receive())) is not None:
                self._take(number, worker, message, pending)

    def _tell_others(self, worker: WorkerHandle, message: FindingShared | HangSuspected) -> None:
        for other in self._live:
            if other is not worker:
                other.process.send(message)

    def _take(self, number: int, worker: WorkerHandle, message: FromWorker, pending: PendingChanges) -> None:
        worker.messages += 1
        match message:
            case Alive(awaited, given_up, streaming):
                worker.awaited, worker.given_up, worker.streaming = awaited, given_up, streaming
                if self._fleet is not None:
                    self._tell_worked_on()
            case CountsReported(counts, degraded):
                worker.counts, worker.degraded = counts, degraded
            case Charges(open_, asked_number):
                self._charges.include(open_)
                worker.charges_collected = asked_number
                self._live.changed()
            case ArmsObserved(seen):
                self._observed.extend(seen)
            case RequestsEnded(events):
                self.requests_ended([event.encode() for event in events])
            case FollowTenants(tenants) if self._tenants is not None:
                self._tenants.follow(worker.process.send, tenants)
            case TenantsTold(events) if self._tenants is not None:
                self._tenants.publish(Tapped(*each) for each in events)
            case DrawTokens():
                worker.process.send(self._buckets.answer(message))
            case FingerprintsAcknowledged(newest):
                worker.acknowledged = newest
                self._let_listen(worker)
                self._live.changed()
            case Listening():
                worker.is_listening = True
                self._live.changed()
            case Drained():
                worker.is_drained = True
                self._live.changed()
            case StartFailed(reason):
                if not self._has_opened:
                    raise StartupError(reason)
                _log.error("worker %d: %s", number, reason)
            case LoadReported(report) if self._fleet is not None:
                self._fleet.reported(report)
            case FindingShared():
                self.findings.take(message)
                self._turns.found(message.finding)
                self._tell_others(worker, message)
            case HangSuspected():
                self._tell_others(worker, message)
            case AskTurn() | EndTurn():
                self._turns.take(message, worker.process.send)
            case SilenceSuspected(server, model, since_s):
                if not any((server, model) in each.streaming for each in self._live):
                    self.suspect(server, model, since_s)
            case ReadIndex():
                pending.begin(read_index(worker.process, message, pending), name=f"index-for-worker-{number}")
            case LoadModel() | UnloadModel():
                pending.begin(carry_out(worker.process, message, pending), name=f"change-for-worker-{number}")


async def _within(timeout_s: float, what: Awaitable[T]) -> T:
    async with asyncio.timeout(timeout_s):
        return await what
