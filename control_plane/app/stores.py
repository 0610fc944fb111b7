"""Opens the stores of state, audit, usage, demand and idempotency records: the Redis of `--state-url`, or SQLite files in the
state folder.

Redis's adapters are imported only where a Redis is opened: importing its client takes a twentieth of the start of a gateway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import SecretStr

from control_plane.admin.idempotency.adapters.sqlite_records import open_sqlite_records
from control_plane.admin.idempotency.ports import IdempotencyRecords
from control_plane.admission.adapters.sqlite_demand import open_sqlite_demand
from control_plane.admission.ports import DemandBoard
from control_plane.audit.adapters.sqlite_log import open_sqlite_audit
from control_plane.audit.domain.entry import Actor
from control_plane.audit.ports import AuditLog
from control_plane.audit.trail import AuditTrail
from control_plane.jobs.adapters.sqlite_jobs import open_sqlite_jobs
from control_plane.jobs.ports import JobStore
from control_plane.metering.adapters.sqlite_usage import open_sqlite_usage
from control_plane.metering.domain.usage import KEEP_RECORDS
from control_plane.metering.ports import UsageStore
from control_plane.objects.adapters.sqlite_store import open_sqlite_state
from control_plane.objects.audited_store import AuditedStore
from control_plane.objects.ports import StateStore

_STATE_FILE = "state.sqlite"


def state_exists(state_url: SecretStr | None, state_dir: Path) -> bool:
    """Whether a store exists, even an empty one. A Redis counts as one: only opening it can tell more."""
    return state_url is not None or (state_dir / _STATE_FILE).exists()


async def wait_for_state_store(state_url: SecretStr | None, *, timeout_s: float) -> None:
    """Wait until the Redis that holds the state can be used; a file always can. Raises StartupError: it cannot within
    `timeout_s`."""
    if state_url is not None:
        from control_plane.storage.redis import wait_until_durable

        await wait_until_durable(state_url, timeout_s=timeout_s)


async def open_state_store(state_url: SecretStr | None, state_dir: Path) -> StateStore:
    """Open the store of keys, tenants, routes and prices.

    Raises:
        StartupError: the store cannot be used as it is, such as a Redis that evicts.
        StoreUnavailable: it cannot be reached now.
    """
    if state_url is None:
        return await open_sqlite_state(state_dir / _STATE_FILE)
    from control_plane.objects.adapters.redis_store import open_redis_state

    return await open_redis_state(state_url)


async def open_audit_log(state_url: SecretStr | None, state_dir: Path, *, keep: int | None = None) -> AuditLog:
    """Open the audit log, of which Redis keeps so many of the newest entries; None: all, so a command's few entries are left
    to the gateways to make room for. Raises as `open_state_store` does."""
    if state_url is None:
        return await open_sqlite_audit(state_dir / "audit.sqlite")
    from control_plane.audit.adapters.redis_log import open_redis_audit

    return await open_redis_audit(state_url, keep=keep)


@asynccontextmanager
async def audited_state(state_url: SecretStr | None, state_dir: Path, actor: Actor) -> AsyncIterator[AuditedStore]:
    """Open the state store for a command that changes it without a running tidegate; what it changes is in the audit
    log. Raises as `open_state_store` does.
    """
    state = await open_state_store(state_url, state_dir)
    try:
        log = await open_audit_log(state_url, state_dir)
        try:
            yield AuditedStore(state, AuditTrail(log), actor)
        finally:
            await log.close()
    finally:
        await state.close()


async def open_usage_store(
    state_url: SecretStr | None, state_dir: Path, keep_days: int | None = None, keep_records: int = KEEP_RECORDS
) -> UsageStore:
    """Open the store of usage sums; with `keep_days` it removes older ones, and of the records all but the newest
    `keep_records`. Raises as `open_state_store` does."""
    if state_url is None:
        return await open_sqlite_usage(state_dir / "usage.sqlite", keep_days, keep_records)
    from control_plane.metering.adapters.redis_usage import open_redis_usage

    return await open_redis_usage(state_url, keep_days, keep_records)


async def open_job_store(state_url: SecretStr | None, state_dir: Path) -> JobStore:
    """Open the store of asynchronous jobs. Raises as `open_state_store` does."""
    if state_url is None:
        return await open_sqlite_jobs(state_dir / "jobs.sqlite")
    from control_plane.jobs.adapters.redis_jobs import open_redis_jobs

    return await open_redis_jobs(state_url)


async def open_demand_board(state_url: SecretStr | None, state_dir: Path) -> DemandBoard:
    """Open the board on which processes share their tenants' demand. Raises as `open_state_store` does."""
    if state_url is None:
        return await open_sqlite_demand(state_dir / "demand.sqlite")
    from control_plane.admission.adapters.redis_demand import make_redis_demand

    return make_redis_demand(state_url)


async def open_idempotency_records(state_url: SecretStr | None, state_dir: Path) -> IdempotencyRecords:
    """Open the records of the admin API's requests with idempotency keys. Raises StartupError."""
    if state_url is None:
        return await open_sqlite_records(state_dir / "idempotency.sqlite")
    from control_plane.admin.idempotency.adapters.redis_records import make_redis_records

    return make_redis_records(state_url)
