"""Keeps the worker processes running, tells them what changes, does what they ask for, and sums what they count.

The parent's side of `--workers N`; a worker's own is `worker.py`. Triton, the models and the admin API stay with the parent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from control_plane.core.backoff import RestartLimits, count_failures, restart_delay_s
from control_plane.core.errors import ControlPlaneError, ModelLoadFailed, StartupError, UpstreamFailed
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.model import ModelOverride
from control_plane.models.fingerprints import Fingerprints
from control_plane.models.ports import ModelAdministration
from control_plane.telemetry.request_counts import RequestCounts, total
from control_plane.triton.compute_time import OpenCharge
from control_plane.triton.ports import Upstream
from control_plane.workers.fleet_for_workers import FleetForWorkers
from control_plane.workers.messages import (
    CannotBegin,
    Changed,
    Charges,
    Counted,
    Drain,
    DrawTokens,
    FingerprintsChanged,
    FingerprintsTaken,
    FromWorker,
    Listen,
    Listening,
    LoadModel,
    ReloadTls,
    Reported,
    TellCharges,
    ToWorker,
    UnloadModel,
    UpstreamDown,
    UpstreamUp,
)
from control_plane.workers.ports import WorkerLauncher, WorkerProcess
from control_plane.workers.token_buckets import TokenBuckets

T = TypeVar("T")

_log = logging.getLogger(__name__)

_START_ATTEMPTS = 3
_MAX_SILENCE_S = 30.0
_END_GRACE_S = 3.0
"""For a worker to end after its drain, before it is killed: two seconds of it are for what it has metered to be stored."""


_TELL_TIMEOUT_S = 0.25
_TAKE_TIMEOUT_S = 5.0
"""For a worker to say that it goes by what is loaded now; after it, it might answer with what another model answered, and is killed."""


@dataclass(slots=True, eq=False)
class _Worker:
    process: WorkerProcess
    counts: RequestCounts = field(default_factory=RequestCounts)
    taken: int = -1
    """The newest fingerprints that it goes by; until it has the first, it is not told to listen."""
    charges_told: int = 0
    was_told_to_listen: bool = False
    is_listening: bool = False


class TakesCharges(Protocol):
    """`metering/compute_charges`: what is to be charged of requests that have ended in any process."""

    def include(self, charges: Iterable[OpenCharge]) -> None: ...


class Workers:
    """All workers over all their lives; `triton/servers.Follower`, and `models/ports.FingerprintBoard` for what they answer from."""

    def __init__(self, *, count: int, launcher: WorkerLauncher, limits: RestartLimits | None = None) -> None:
        self._count = count
        self._launcher = launcher
        self._limits = limits or RestartLimits()
        self._live: dict[int, _Worker] = {}
        self._retired = RequestCounts()
        self._upstream_state: UpstreamUp | UpstreamDown = UpstreamDown("Triton is starting")
        self._fingerprints = Fingerprints()
        self._fingerprints_number = 0
        self._fleet: FleetForWorkers | None = None
        self._is_open = False
        self._has_opened = False
        self._is_stopping = False
        self._charges_asked = 0
        self._buckets = TokenBuckets()
        self._changed = asyncio.Event()

    def join_fleet(self, fleet: FleetForWorkers) -> None:
        """They are its processes: they are told of it, and tell."""
        self._fleet = fleet
        fleet.begin(self._tell)

    @property
    def listening(self) -> int:
        """How many answer their ports now."""
        return sum(worker.is_listening for worker in self._live.values())

    def counts(self) -> RequestCounts:
        """The sum over all lives; of the living, as of their last message, which is a second old at most.

        A worker that is killed takes with it what it has counted since that message.
        """
        return total([self._retired, *(worker.counts for worker in self._live.values())])

    async def run(self, models: ModelAdministration, charges: TakesCharges) -> None:
        """Keep them running until `drain` has ended them; cancelling kills them.

        Raises:
            StartupError: they cannot work as they are set; once all have listened, they are restarted for ever.
        """
        self._charges = charges
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._count):
                tasks.create_task(self._keep(number, models), name=f"worker-{number}")

    async def open(self) -> None:
        """Let them listen; return when all do."""
        if self._fleet is not None:
            self._fleet.tell_changes()
        self._is_open = True
        for worker in self._live.values():
            self._let_listen(worker)
        while self.listening < self._count:
            self._changed.clear()
            await self._changed.wait()
        self._has_opened = True

    async def drain(self, timeout_s: float) -> None:
        """Let requests in flight finish for `timeout_s` at most, in all of them; return when all have ended."""
        self._is_stopping = True
        self._tell(Drain(timeout_s))
        try:
            async with asyncio.timeout(timeout_s + _END_GRACE_S):
                while self._live:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            _log.warning("%d workers did not end in time and are killed", len(self._live))
            for worker in self._live.values():
                worker.process.kill()

    async def collect_charges(self) -> None:
        """Have all that wait for Triton's counts told; one that is slow tells its own later."""
        self._charges_asked += 1
        number = self._charges_asked
        asked = list(self._live.values())
        self._tell(TellCharges(number))
        with suppress(TimeoutError):
            async with asyncio.timeout(_TELL_TIMEOUT_S):
                while any(worker.charges_told < number and worker in self._live.values() for worker in asked):
                    self._changed.clear()
                    await self._changed.wait()

    def reload_tls(self) -> None:
        self._tell(ReloadTls())

    def up(self, upstream: Upstream, server: str = "") -> None:
        self._tell_upstream(UpstreamUp(upstream.endpoints))

    def down(self, reason: str, server: str = "") -> None:
        self._fingerprints.forget_all()
        self._tell_upstream(UpstreamDown(reason))

    def left(self, server: str) -> None:
        """It went down before."""

    async def publish(self, changes: Mapping[str, Fingerprint | None]) -> None:
        """Return when all that may be asked go by it; those that do not say so in time are killed."""
        self._fingerprints.change(changes)
        self._fingerprints_number += 1
        number = self._fingerprints_number
        asked = [worker for worker in self._live.values() if worker.was_told_to_listen]
        self._tell(_message_of(number, changes))
        try:
            async with asyncio.timeout(_TAKE_TIMEOUT_S):
                while self._late(asked, number):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            late = self._late(asked, number)
            _log.error("%d workers do not take note of what is loaded and are killed", len(late))
            for worker in late:
                worker.process.kill()

    async def doubt(self, models: Iterable[str]) -> None:
        """They are unknown already; nobody else has them."""

    async def forget(self, models: Iterable[str]) -> None:
        """The same."""

    def _late(self, asked: list[_Worker], number: int) -> list[_Worker]:
        live = self._live.values()
        return [worker for worker in asked if worker.taken < number and worker in live]

    def _let_listen(self, worker: _Worker) -> None:
        """Once it knows what is loaded: what is told in between comes before."""
        if self._is_open and worker.taken >= 0 and not worker.was_told_to_listen:
            worker.was_told_to_listen = True
            worker.process.send(Listen())

    def _tell_upstream(self, state: UpstreamUp | UpstreamDown) -> None:
        self._upstream_state = state
        self._tell(state)

    def _tell(self, message: ToWorker) -> None:
        for worker in self._live.values():
            worker.process.send(message)

    async def _keep(self, number: int, models: ModelAdministration) -> None:
        now_s = asyncio.get_running_loop().time
        failures = 0
        while True:
            started_s = now_s()
            reason = await self._live_once(number, models)
            if self._is_stopping:
                return
            failures = count_failures(failures, life_s=now_s() - started_s, limits=self._limits)
            if not self._has_opened and failures >= _START_ATTEMPTS:
                raise StartupError(f"worker {number} does not start: {reason}")
            delay_s = restart_delay_s(failures, limits=self._limits)
            _log.error("worker %d is restarted in %.1f s: %s", number, delay_s, reason)
            await asyncio.sleep(delay_s)

    async def _live_once(self, number: int, models: ModelAdministration) -> str:
        try:
            process = await self._launcher.start(number)
        except StartupError as exc:
            if not self._has_opened:
                raise
            return str(exc)
        worker = self._live[number] = _Worker(process)
        try:
            for message in [self._upstream_state] if self._fleet is None else self._fleet.all_known():
                process.send(message)
            process.send(_message_of(self._fingerprints_number, self._fingerprints.all()))
            if self._is_stopping:
                process.send(Drain(0))
            asked = _Asked(models, self._fleet)
            async with asyncio.TaskGroup() as asked.tasks:
                await self._listen_to(number, worker, asked)
                worker.is_listening = False
                asked.cancel()  # nobody is left to be told, and a load goes on by itself: the next life must not wait for it
            return await _within(_END_GRACE_S, process.wait())
        except TimeoutError:
            return f"it said nothing for {_MAX_SILENCE_S:g} s, or did not end"
        finally:
            process.kill()
            del self._live[number]
            self._retired = total([self._retired, worker.counts.retired()])
            self._changed.set()

    async def _listen_to(self, number: int, worker: _Worker, asked: _Asked) -> None:
        """Until its link ends, or it hangs: a worker tells its counts every second."""
        with suppress(TimeoutError):
            while (message := await _within(_MAX_SILENCE_S, worker.process.receive())) is not None:
                self._take(number, worker, message, asked)

    def _take(self, number: int, worker: _Worker, message: FromWorker, asked: _Asked) -> None:
        match message:
            case Counted(counts):
                worker.counts = counts
            case Charges(open_, asked_number):
                self._charges.include(open_)
                worker.charges_told = asked_number
                self._changed.set()
            case DrawTokens():
                worker.process.send(self._buckets.answer(message))
            case FingerprintsTaken(taken):
                worker.taken = taken
                self._let_listen(worker)
                self._changed.set()
            case Listening():
                worker.is_listening = True
                self._changed.set()
            case CannotBegin(reason):
                if not self._has_opened:
                    raise StartupError(reason)
                _log.error("worker %d: %s", number, reason)
            case Reported(report) if self._fleet is not None:
                self._fleet.reported(report)
            case LoadModel() | UnloadModel():
                asked.begin(_change(worker.process, message, asked), name=f"asked-by-worker-{number}")


class _Asked:
    """The changes that one life of a worker has asked for."""

    tasks: asyncio.TaskGroup

    def __init__(self, models: ModelAdministration, fleet: FleetForWorkers | None) -> None:
        self.models = models
        self._fleet = fleet
        self._under_way: set[asyncio.Task[None]] = set()

    def begin(self, change: Coroutine[None, None, None], *, name: str) -> None:
        task = self.tasks.create_task(change, name=name)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def change(self, message: LoadModel | UnloadModel) -> None:
        """Return when the workers know, too: the next request may be sent to any of them."""
        if isinstance(message, LoadModel):
            await self.models.load(message.name, _override_of(message))
        else:
            await self.models.unload(message.name, unload_dependents=message.unload_dependents)
        if self._fleet is not None:
            self._fleet.tell_changes()

    def cancel(self) -> None:
        for task in self._under_way:
            task.cancel()


async def _change(worker: WorkerProcess, message: LoadModel | UnloadModel, asked: _Asked) -> None:
    try:
        await asked.change(message)
    except ControlPlaneError as exc:
        code = exc.upstream_code if isinstance(exc, ModelLoadFailed) else 0
        worker.send(Changed(message.number, exc.code.value, str(exc), code))
    except Exception:
        _log.exception("a worker's request for a change failed; this is a defect")
        worker.send(Changed(message.number, UpstreamFailed.code.value, "internal error of the gateway; its log has the details"))
    else:
        worker.send(Changed(message.number))


def _message_of(number: int, changes: Mapping[str, Fingerprint | None]) -> FingerprintsChanged:
    return FingerprintsChanged(
        number, {name: (each.digest, each.keeps_answers, each.is_repeatable) if each else None for name, each in changes.items()}
    )


def _override_of(message: LoadModel) -> ModelOverride | None:
    if message.config is None and message.files is None:
        return None
    return ModelOverride(message.config, message.files or {})


async def _within(timeout_s: float, what: Awaitable[T]) -> T:
    async with asyncio.timeout(timeout_s):
        return await what
