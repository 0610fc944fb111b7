"""Tap of one process for the events of tenants that are followed: requests and jobs that have ended, until they are collected.

Bounded for each tenant by itself, so that one tenant's flood costs no other an event.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from control_plane.events.domain.cloud_event import JOB, LOST, REQUEST
from control_plane.events.tenant_feeds import MAX_EVENTS
from control_plane.metering.domain.usage import UsageEvent
from control_plane.metering.domain.usage_text import request_fields

AT_ONCE = 100
"""Events that are encoded at once: a millisecond, in which nothing else runs."""


class Tapped(NamedTuple):
    """An event of a tenant that has no number yet; `data` is a JSON object in ASCII."""

    tenant: str
    kind: str
    at_s: float
    data: str


class TenantTap:
    """Bounded buffer of the latest events of each tenant that is followed; implements `metering/ports.RequestLog`."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[UsageEvent | Tapped]] = {}
        self._lost: dict[str, int] = {}

    @property
    def is_used(self) -> bool:
        """Whether any tenant is followed."""
        return bool(self._waiting)

    def follow(self, tenants: frozenset[str]) -> None:
        """Keep the events of these tenants from now on, and of no others."""
        self._waiting = {each: self._waiting.get(each) or deque(maxlen=MAX_EVENTS) for each in tenants}
        self._lost = {tenant: count for tenant, count in self._lost.items() if tenant in tenants}

    def write(self, event: UsageEvent) -> None:
        self._put(event.tenant, event)

    def job_ended(self, tenant: str, at_s: float, fields: Mapping[str, Any]) -> None:
        """Keep what is told of a job that has ended."""
        if tenant in self._waiting:
            self._put(tenant, Tapped(tenant, JOB, at_s, text_of(fields)))

    def take(self) -> list[Tapped]:
        """Return the oldest that wait, some at a time; empty if none does. Where some were lost, that comes first."""
        taken: list[Tapped] = []
        for tenant, waiting in self._waiting.items():
            if waiting and (lost := self._lost.pop(tenant, 0)):
                taken.append(Tapped(tenant, LOST, _at_s(waiting[0]), text_of({"count": lost})))
            while waiting and len(taken) < AT_ONCE:
                taken.append(_tapped(waiting.popleft()))
        return taken

    def _put(self, tenant: str, event: UsageEvent | Tapped) -> None:
        waiting = self._waiting.get(tenant)
        if waiting is not None:
            if len(waiting) == MAX_EVENTS:
                self._lost[tenant] = self._lost.get(tenant, 0) + 1
            waiting.append(event)


def _at_s(event: UsageEvent | Tapped) -> float:
    return event.ended_s if isinstance(event, UsageEvent) else event.at_s


def _tapped(event: UsageEvent | Tapped) -> Tapped:
    if isinstance(event, Tapped):
        return event
    fields = request_fields(event)
    del fields["server"]  # which of the operator's servers it was says how busy the others are
    return Tapped(event.tenant, REQUEST, event.ended_s, text_of(fields))


def text_of(fields: Mapping[str, Any]) -> str:
    """Write an object as JSON in ASCII: some readers of lines also end them at U+2028 or U+0085."""
    try:
        encoded = orjson.dumps(fields, default=str)
    except TypeError:  # a lone surrogate, or an integer beyond 64 bits
        encoded = b"\xff"
    return encoded.decode() if encoded.isascii() else json.dumps(fields, default=str)
