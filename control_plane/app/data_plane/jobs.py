"""Wires asynchronous jobs in one process: store, queue and spool, the service for callers, and the runner.

`app/data_plane/request_services` opens them, `app/data_plane/data_plane` gives them what they compute with.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

from control_plane.app.stores import open_job_store
from control_plane.batches.adapters.folder_shelf import FolderShelf
from control_plane.batches.batches import Batches
from control_plane.batches.files import Files
from control_plane.batches.ports import Shelf
from control_plane.core.errors import StartupError
from control_plane.jobs.adapters.folder_spool import FolderSpool
from control_plane.jobs.adapters.polled_tickets import PolledTickets
from control_plane.jobs.backlog import BacklogReader
from control_plane.jobs.deliveries import Deliveries
from control_plane.jobs.domain.delivery import DeliveryKind
from control_plane.jobs.domain.gate import BulkGate
from control_plane.jobs.domain.job import Job
from control_plane.jobs.domain.transitions import RetryPolicy
from control_plane.jobs.files.adapters.folder_files import FolderFiles
from control_plane.jobs.files.callers_files import CallersFiles
from control_plane.jobs.files.domain.place import Prefix, read_prefixes
from control_plane.jobs.files.ports import FileStore
from control_plane.jobs.jobs import Jobs
from control_plane.jobs.ports import Bounds, Compute, Courier, JobBackend, JobQueue, JobStore, JobTotals, UsageSums
from control_plane.jobs.runner import JobRunner
from control_plane.jobs.sweeper import Sweeper
from control_plane.jobs.upload_slots import UploadSlots
from control_plane.jobs.webhooks.adapters.guarded_post import GuardedPost
from control_plane.jobs.webhooks.adapters.system_resolver import SystemResolver
from control_plane.jobs.webhooks.domain.url import UrlRules, read_networks
from control_plane.jobs.webhooks.sender import WebhookSender
from control_plane.settings import Settings
from control_plane.settings.jobs import JobSettings


class JobServices:
    """The stores of jobs and the services over them, of one process; made by `open_jobs`."""

    def __init__(self, settings: JobSettings, backend: JobBackend, usage: UsageSums, shelf: Shelf, *, is_only: bool) -> None:
        """`is_only`: no other process sends requests to the servers."""
        self._is_only = is_only
        self._settings = settings
        self._backend, self._usage = backend, usage
        self._policy = RetryPolicy(max_attempts=settings.jobs_attempts, keep_s=settings.jobs_keep_s)
        self.on_ended: Callable[[Job], None] = lambda job: None
        """Told of each job that this process has ended, however."""
        slots, bounds = UploadSlots(), _bounds(settings)
        self.jobs = Jobs(
            backend,
            bounds=bounds,
            policy=self._policy,
            expire_s=settings.jobs_expire_s,
            slots=slots,
            on_ended=lambda job: self.on_ended(job),
        )
        self.files = Files(shelf, max_bytes=settings.jobs_bytes_per_tenant, slots=slots)
        self.batches = Batches(
            backend,
            shelf=shelf,
            files=self.files,
            bounds=bounds,
            policy=self._policy,
            keep_s=settings.batches_keep_s,
            max_open=settings.batches_open_per_tenant,
        )
        self.backlog = BacklogReader(backend.store)
        self.files.answer_bytes = self.batches.answer_bytes
        self._sweeper = Sweeper(
            backend,
            usage=usage,
            policy=self._policy,
            kept=_kept_per_tenant(settings),
            on_ended=lambda job: self.on_ended(job),
        )
        self.max_attempts = settings.jobs_attempts
        self.max_upload_bytes = settings.jobs_max_upload_bytes
        prefixes = _prefixes(settings)
        self.callers_files = CallersFiles(prefixes, _open_files, read_result=backend.spool.read) if prefixes else None
        self.webhooks: WebhookSender | None = None
        self.deliveries: Deliveries | None = None
        """None: this process delivers nothing, and takes no job of which anything is to be delivered."""
        self._runner: JobRunner | None = None
        self._may_run = asyncio.Event()

    def run_by(self, compute: Compute, *, weight_of: Callable[[str], float]) -> None:
        """Have `run` run jobs in this process, too; `weight_of` says a tenant's share."""
        self._runner = JobRunner(
            self._backend,
            compute=compute,
            usage=self._usage,
            gate=BulkGate(self._settings.jobs_at_once, least=1.0) if self._is_only else BulkGate(self._settings.jobs_at_once),
            holder=uuid4().hex,
            policy=self._policy,
            weight_of=weight_of,
            on_result=self.batches.job_ended,
            on_ended=lambda job: self.on_ended(job),
        )

    def deliver_by(self, secrets_of: Callable[[str], Sequence[str]]) -> None:
        """Have `run` deliver what jobs have come to, too; `secrets_of` says what a tenant's are signed with."""
        rules = UrlRules(self._settings.jobs_webhook_plaintext, read_networks(self._settings.jobs_webhook_networks))
        post = GuardedPost(rules, SystemResolver())
        self.webhooks = WebhookSender(index=self._backend.store.deliveries, post=post, rules=rules, secrets_of=secrets_of)
        couriers: dict[DeliveryKind, Courier] = {DeliveryKind.WEBHOOK: self.webhooks}
        if self.callers_files is not None:
            couriers[DeliveryKind.OUTPUT] = self.callers_files
        self.deliveries = Deliveries(store=self._backend.store, couriers=couriers)

    def open(self) -> None:
        """Let jobs run from now on: models are loaded, so that one that is missing is missing for good."""
        self._may_run.set()

    async def run(self) -> None:
        """Sweep, and run jobs once that is opened, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._backend.queue.run(), name="job-queue")
            tasks.create_task(self._sweeper.run(), name="job-sweeper")
            tasks.create_task(self.batches.run(), name="batches")
            if self.deliveries is not None:
                tasks.create_task(self.deliveries.run(), name="job-deliveries")
            if self.callers_files is not None:
                tasks.create_task(self.callers_files.run(), name="job-files-sweep")
            if self._runner is not None and self._settings.jobs_run:
                await self._may_run.wait()
                tasks.create_task(self._runner.run(), name="job-runner")

    async def drain(self, timeout_s: float) -> None:
        """Claim no more, let jobs that run end for at most `timeout_s`, and give the rest back."""
        self.jobs.drain(timeout_s)
        if self._runner is not None:
            await self._runner.drain(timeout_s)


@asynccontextmanager
async def open_jobs(settings: Settings, usage: UsageSums) -> AsyncIterator[JobServices | None]:
    """Open the stores of jobs; None where jobs are switched off. Raises StartupError, StoreUnavailable."""
    if not settings.jobs.jobs:
        yield None
        return
    folder = settings.process.state_dir
    async with AsyncExitStack() as held:
        store = await open_job_store(settings.state.state_url, folder)
        held.push_async_callback(store.close)
        spool_folder = settings.jobs.jobs_spool or folder.absolute() / "spool"
        spool = FolderSpool(spool_folder, keep_free_bytes=settings.jobs.jobs_free_bytes)
        held.push_async_callback(spool.close)
        shelf = FolderShelf(spool_folder / "batches", keep_free_bytes=settings.jobs.jobs_free_bytes)
        held.push_async_callback(shelf.close)
        is_only = settings.state.state_url is None and settings.process.workers == 1
        queue = _make_queue(settings, store, is_only=is_only)
        held.push_async_callback(queue.close)
        services = JobServices(settings.jobs, JobBackend(store, queue, spool), usage, shelf, is_only=is_only)
        if services.callers_files is not None:
            held.push_async_callback(services.callers_files.close)
        yield services


def _make_queue(settings: Settings, store: JobStore, *, is_only: bool) -> JobQueue:
    """Make the queue without connecting. Raises StartupError."""
    url = settings.jobs.jobs_url
    if url is None:
        return PolledTickets(store, is_only=is_only)
    if settings.state.state_url is None:
        raise StartupError("TIDEGATE_JOBS_URL needs a --state-url: the jobs themselves are kept in that Redis, the broker has tickets only")
    # Imported here: a gateway without a broker never loads its client.
    from control_plane.jobs.adapters.rabbitmq_tickets import RabbitmqTickets

    return RabbitmqTickets(url)


def _prefixes(settings: JobSettings) -> tuple[Prefix, ...]:
    """Read where callers may have files. Raises StartupError."""
    try:
        prefixes = read_prefixes(settings.jobs_stores)
    except ValueError as exc:
        raise StartupError(f"TIDEGATE_JOBS_STORES: {exc}") from exc
    return prefixes


def _open_files(prefix: Prefix) -> FileStore:
    """Open a store of callers' files, without a request. Raises StartupError."""
    if not prefix.store:
        return FolderFiles(Path(prefix.url))
    # Imported here: a gateway without object stores never loads their clients.
    from control_plane.jobs.files.adapters.object_files import ObjectFiles

    return ObjectFiles(prefix.url)


def _bounds(settings: JobSettings) -> Bounds:
    return Bounds(
        of_tenant=JobTotals(settings.jobs_open_per_tenant, settings.jobs_bytes_per_tenant),
        in_all=JobTotals(settings.jobs_open, settings.jobs_bytes),
    )


def _kept_per_tenant(settings: JobSettings) -> JobTotals:
    return JobTotals(settings.jobs_kept_per_tenant, settings.jobs_kept_bytes_per_tenant)
