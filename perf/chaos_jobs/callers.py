"""Callers that hand in jobs and batches through outages, cancel some, and look at some as soon as they have ended.

A job counts as accepted once a caller has read its 202. One that came with an Idempotency-Key is handed in again until
then; of another the caller does not know, and no promise was made.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from perf.chaos_jobs.http import FAILURES, Client, Reply
from perf.chaos_jobs.work import TENANTS, Wanted, batch_lines

ENDED = frozenset(("succeeded", "failed", "cancelled", "expired", "dead"))
_CALLERS = 12
_WATCHED = 0.1
"""Part of the jobs whose result is looked at as soon as there is one, to be compared with what it is in the end."""
_AGAIN_S = 0.2
_NOT_NOW = (429, 503)
_BOUNDARY = "tidegate-chaos"


@dataclass(slots=True)
class Accepted:
    """A job that a gateway has promised to answer."""

    wanted: Wanted
    id: str
    at_s: float
    """When its 202 was read, in seconds since 1970."""
    state: str = ""
    """The state that the caller was told who wanted it cancelled."""
    cancelled_s: float = 0.0
    """When that was told, in seconds since 1970."""
    seen: tuple[int, bytes] | None = None
    """Status and body of its result as it was first read."""


@dataclass(slots=True)
class AcceptedBatch:
    """A batch that a gateway has promised to compute."""

    tenant: str
    id: str
    lines: list[str]
    view: dict[str, Any] = field(default_factory=dict)
    """The batch object that the gateway returned once the batch had ended."""


class Callers:
    """Callers of a drill: they hand in jobs and batches, and remember what they were promised."""

    def __init__(self, addresses: list[str], keys: dict[str, str], seed: int) -> None:
        self._addresses = addresses
        self._clients = {tenant: Client(keys[tenant]) for tenant in TENANTS}
        self._random = Random(f"callers {seed}")
        self.accepted: list[Accepted] = []
        self.batches: list[AcceptedBatch] = []
        self.unknown = 0
        """Submissions without a key whose answer did not come."""
        self.refused = 0

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    async def hand_in(self, jobs: Iterable[Wanted], *, pause_s: float = 0.0) -> None:
        """Hand in all of them, a few at a time; return when those that are to be cancelled or watched are done with, too."""
        left = iter(jobs)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_CALLERS):
                tasks.create_task(self._each(left, tasks, pause_s))

    async def _each(self, left: Iterable[Wanted], tasks: asyncio.TaskGroup, pause_s: float) -> None:
        for wanted in left:
            accepted = await self._submit(wanted)
            if accepted is not None:
                self.accepted.append(accepted)
                if wanted.cancel_after_s is not None:
                    tasks.create_task(self._cancel(accepted, wanted.cancel_after_s))
                elif self._random.random() < _WATCHED:
                    tasks.create_task(self._watch(accepted))
            await asyncio.sleep(pause_s)

    async def _submit(self, wanted: Wanted) -> Accepted | None:
        """Hand in one; None: without a key, and nobody answered."""
        path = f"/v2/models/{wanted.request.model}/jobs"
        fields = dict(wanted.request.fields)
        while True:
            if wanted.key:
                fields["Idempotency-Key"] = wanted.key
            try:
                reply = await self._once(wanted.tenant, "POST", path, wanted.request.body, fields)
            except FAILURES:
                if not wanted.key:
                    self.unknown += 1
                    return None
                await asyncio.sleep(_AGAIN_S)
                continue
            if reply.status == 202:
                return Accepted(wanted, reply.json["id"], time.time())
            if reply.status not in (409, *_NOT_NOW):
                raise RuntimeError(f"a job was answered {reply.status} {reply.body[:300]!r}")
            self.refused += 1
            await asyncio.sleep(_AGAIN_S)

    async def _cancel(self, accepted: Accepted, after_s: float) -> None:
        await asyncio.sleep(after_s)
        reply = await self.ask(accepted.wanted.tenant, "DELETE", f"/v2/jobs/{accepted.id}")
        if reply.status == 200:  # a Redis that was set back may not know it any more
            accepted.state, accepted.cancelled_s = reply.json["state"], time.time()

    async def _watch(self, accepted: Accepted) -> None:
        """Read a result as soon as there is one."""
        path = f"/v2/jobs/{accepted.id}/result"
        while (reply := await self.ask(accepted.wanted.tenant, "GET", path, {"Prefer": "wait=5"})).status == 409:
            if (await self.ask(accepted.wanted.tenant, "GET", f"/v2/jobs/{accepted.id}")).json.get("state") in ENDED:
                break
        if reply.status not in (404, 409):
            accepted.seen = reply.status, reply.body

    async def ask(self, tenant: str, method: str, path: str, fields: dict[str, str] | None = None, *, body: bytes = b"") -> Reply:
        """Ask what may be asked twice, until a gateway answers it; to be busy or unavailable is no answer."""
        while True:
            with suppress(*FAILURES):
                reply = await self._once(tenant, method, path, body, fields or {})
                if reply.status not in _NOT_NOW:
                    return reply
            await asyncio.sleep(_AGAIN_S)

    async def hand_in_batches(self, count: int, seed: int) -> None:
        """Hand in batches, one after the other."""
        for number in range(count):
            tenant, lines = TENANTS[number % len(TENANTS)], batch_lines(number, seed)
            content_type = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
            file = await self._until_made(tenant, "/v1/files", _multipart("\n".join(lines)), content_type)
            wanted = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
            batch = await self._until_made(tenant, "/v1/batches", json.dumps(wanted).encode(), {"Content-Type": "application/json"})
            self.batches.append(AcceptedBatch(tenant, batch["id"], lines))

    async def _until_made(self, tenant: str, path: str, body: bytes, fields: dict[str, str]) -> dict[str, Any]:
        reply = await self.ask(tenant, "POST", path, fields, body=body)
        if reply.status != 200:
            raise RuntimeError(f"{path} was answered {reply.status} {reply.body[:300]!r}")
        made: dict[str, Any] = reply.json
        return made

    async def _once(self, tenant: str, method: str, path: str, body: bytes, fields: dict[str, str]) -> Reply:
        return await self._clients[tenant].call(self._random.choice(self._addresses), method, path, body, fields)


async def until(is_so: Callable[[], Any], timeout_s: float, what: str) -> None:
    """Wait until an awaited condition holds. Raises TimeoutError."""
    deadline_s = time.monotonic() + timeout_s
    while not await is_so():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"after {timeout_s:g} s still not: {what}")
        await asyncio.sleep(0.25)


def _multipart(lines: str) -> bytes:
    part = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n'
    fields = part % ("purpose", "") + "batch\r\n" + part % ("file", '; filename="in.jsonl"') + lines + "\r\n"
    return f"{fields}--{_BOUNDARY}--\r\n".encode()
