"""Objects of one kind as the Kubernetes API server has them, followed by list and watch (a reflector, as client-go calls it).

Adapters of `fleet` and `operator` run one each, and look at what it has found; nothing waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from control_plane.storage.kubernetes import ApiUnavailable, ConnectionLost, Gone, KubernetesApi

_log = logging.getLogger(__name__)

_RETRY_S, _MAX_RETRY_S = 0.5, 5.0
"""Time before the next try after an error, doubled each time. The whole fleet's gateways come back at once, so it is
drawn from half of it to all of it."""

_SHORT_S = 0.5
"""Time before which the end of a watch is an error: a proxy may end each at once, and the next would follow without a pause."""

Object = Mapping[str, Any]


class Reflector:
    """Objects of one collection, by name, which follow the API server's through any of its outages."""

    def __init__(self, api: KubernetesApi, path: str, selector: str = "", *, name: str, what: str) -> None:
        """`name` and `what` are for the log: whose they are, and which they are, in the plural."""
        self._api = api
        self._path, self._selector = path, selector
        self._name, self._what = name, what
        self._logged = ""
        """The last logged error; empty once the server has answered again."""
        self.objects: Mapping[str, Object] = {}
        """Replaced with each change, never changed itself."""
        self.has_listed = False
        """Whether the objects have ever been listed: before that, that there are none says nothing."""
        self.on_change: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Follow until cancelled."""
        delay_s = _RETRY_S
        while True:
            try:
                await self._follow()
                delay_s = _RETRY_S
            except Gone:
                delay_s = _RETRY_S
            except ApiUnavailable as exc:
                self._log_once(f"the Kubernetes API server does not say which {self._what} there are, they stay as they are: {exc}")
            except Exception:  # such as an object of another form; the root of a task, which must not end the gateway
                _log.exception("%s: the %s stay as they are", self._name, self._what)
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - it spreads retries
            delay_s = min(2 * delay_s, _MAX_RETRY_S)

    async def _follow(self) -> None:
        """List, and then watch, one watch after the other, until a connection is lost: then all is listed again."""
        loop, version = asyncio.get_running_loop(), await self._list()
        with suppress(ConnectionLost):  # the list that follows says whether the server is away
            while True:
                begun_s = loop.time()
                version = await self._watch(version)
                if loop.time() - begun_s < _SHORT_S:
                    raise ApiUnavailable("a watch ended as soon as it began")
                self._log_once("")

    async def _list(self) -> str:
        """Read all objects, and return the version to watch from."""
        items, version = await self._api.list_all(self._path, self._selector)
        self.has_listed = True
        self._take({_name(each): each for each in items})
        return version

    async def _watch(self, version: str) -> str:
        """Follow the changes since `version` until the server ends the watch, and return the version then."""
        async with aclosing(self._api.watch(self._path, self._selector, version)) as changes:
            async for kind, it in changes:
                version = str((it.get("metadata") or {}).get("resourceVersion", version))
                if kind in ("ADDED", "MODIFIED"):
                    self._take({**self.objects, _name(it): it})
                elif kind == "DELETED":
                    self._take({name: each for name, each in self.objects.items() if name != _name(it)})
        return version

    def _take(self, objects: Mapping[str, Object]) -> None:
        self.objects = dict(objects)
        self.on_change()

    def _log_once(self, fault: str) -> None:
        """Log an error that comes again with each try, once; and its end."""
        if fault and fault != self._logged:
            _log.warning("%s: %s", self._name, fault)
        elif self._logged and not fault:
            _log.info("%s: the Kubernetes API server answers again", self._name)
        self._logged = fault


def _name(it: Object) -> str:
    return str((it.get("metadata") or {}).get("name", ""))
