"""Controller that makes the fleet's desired states as the Model resources say, and writes back what came of it.

It is level-triggered: each turn compares all resources with all that owner `kubernetes` has applied, so whatever was
missed (a restart, a change of leaders, an outage of either side) is made up for by the next turn, and a turn that finds
nothing to do does nothing. Only the fleet's leader acts; the others follow the resources, and can go on at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from control_plane.admin.declared.kinds import KINDS, require_valid
from control_plane.admin.declared.service import Declared
from control_plane.core.errors import Conflict, ControlPlaneError, InvalidRequest, ModelNotFound, ObjectNotFound, StoreUnavailable
from control_plane.core.model import MODEL_NAME, NAME_RULE
from control_plane.fleet.administration import FleetModels
from control_plane.operator.domain.resource import ModelResource, claims, oldest_first, read
from control_plane.operator.domain.status import APPLIED, NOT_YET, Condition, conflict, duplicate, readiness, refused, status_of
from control_plane.operator.ports import ModelResources

_log = logging.getLogger(__name__)

OWNER = "kubernetes"
"""Owner of what resources declare; `tidegate apply` of another one is refused, and the other way round."""

_KIND = KINDS["Model"]

_LOOK_S = 2.0
"""Time between two looks at how far the fleet is, which no event tells of."""

_RESYNC_S = 30.0
"""Time after which everything is compared again, whatever has happened: what was changed by hand is then set back."""

_AT_ONCE = 20
"""Resources that are looked at without letting requests through in between: applying one takes up to a millisecond."""

_REST = 4.0
"""Pause after a turn, in times that it took: thousands of changes that come one by one are looked at together."""

_Seen = Sequence[tuple[str, str, int]]


class _LeadsNoMore(Exception):
    """Another process may lead the fleet by now; it looks at everything itself."""


class ModelController:
    """Controller of the Model resources of one fleet; `run` is its task."""

    def __init__(
        self,
        resources: ModelResources,
        declared: Declared,
        models: FleetModels,
        *,
        is_leader: Callable[[], bool],
        now: Callable[[], str],
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`now` returns the time as RFC 3339 has it, for people; `clock_s` tells how long a turn took."""
        self._resources = resources
        self._declared = declared
        self._models = models
        self._is_leader = is_leader
        self._now = now
        self._clock_s = clock_s
        self._read: dict[str, ModelResource] = {}
        """Resources as they were read last, by name."""
        self._changed = asyncio.Event()
        self._accepted: dict[str, tuple[tuple[str, int], Condition]] = {}
        """Resource -> (uid and generation, condition) as they were compared last."""
        self._seen: _Seen | None = None
        """What was compared last; None where that has not been, or not to the end."""
        self._due_s = 0.0
        self._is_away = False
        self._rejected: dict[str, str] = {}
        """Resource -> why its status was not taken, so that it is logged once."""

    async def run(self) -> None:
        """Follow the resources, and act while this process leads, until cancelled."""
        self._resources.follow(self._changed.set)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._resources.run(), name="model-resources")
            tasks.create_task(self._act(), name="model-controller")

    async def _act(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._changed.wait()
            self._changed.clear()
            try:
                begun_s = self._clock_s()
                await self._turn()
                self._is_away = False
                await asyncio.sleep(min(_LOOK_S, _REST * (self._clock_s() - begun_s)))
            except _LeadsNoMore:
                self._seen = None
            except StoreUnavailable as exc:
                self._seen = None
                if not self._is_away:
                    _log.warning("what Model resources declare cannot be taken up now, and is tried again: %s", exc)
                self._is_away = True
                await asyncio.sleep(_LOOK_S)
            except Exception:  # the root of a task: a defect here must not end the gateway
                self._seen = None
                _log.exception("the Model resources could not be looked at")
                await asyncio.sleep(_RESYNC_S)

    async def _turn(self) -> None:
        """Compare once, as far as this process leads."""
        objects = self._resources.listed()
        if objects is None or not self._is_leader():
            self._seen = None  # whoever leads next begins with a look at everything
            return
        resources = await self._read_all(objects)
        seen, now_s = [(each.name, each.uid, each.generation) for each in resources], asyncio.get_running_loop().time()
        if seen != self._seen or now_s >= self._due_s:
            self._seen = None
            await self._apply(resources)
            self._seen, self._due_s = seen, now_s + _RESYNC_S
        await self._tell(resources)

    async def _read_all(self, objects: Sequence[Mapping[str, Any]]) -> list[ModelResource]:
        """Read the resources that have changed since they were read."""
        before, found = self._read, dict[str, ModelResource]()
        for number, it in enumerate(objects):
            each = before.get((it.get("metadata") or {}).get("name", ""))
            if each is None or each.object is not it:
                each = read(it)
                await _let_others_on(number)
            found[each.name] = each
        self._read = found
        return oldest_first(found.values())

    async def _apply(self, resources: Sequence[ModelResource]) -> None:
        """Apply every resource, and delete what owner `kubernetes` applied and no resource names any more."""
        owners = {live.name: live.owner for live in await self._declared.list_all(_KIND)}
        counting = claims(resources)
        accepted: dict[str, tuple[tuple[str, int], Condition]] = {}
        for number, each in enumerate(resources):
            await _let_others_on(number)
            first = counting[each.model]
            condition = await self._applied(each, owners.get(each.model, "")) if first is each else duplicate(first.name)
            accepted[each.name] = ((each.uid, each.generation), condition)
        self._accepted = accepted
        self._rejected = {name: why for name, why in self._rejected.items() if name in accepted}
        for model in sorted(model for model, owner in owners.items() if owner == OWNER and model not in counting):
            self._require_leadership()
            with suppress(ObjectNotFound):
                await self._declared.delete(_KIND, model)

    async def _applied(self, each: ModelResource, owner: str) -> Condition:
        """Apply one resource, and say what came of it. Raises StoreUnavailable, _LeadsNoMore."""
        self._require_leadership()
        try:
            if MODEL_NAME.fullmatch(each.model) is None:
                raise InvalidRequest(f"model {each.model[:100]!r}: {NAME_RULE}")
            # With its defaults: what a resource leaves out must not stay as somebody has set it by hand, such as suspended.
            spec = require_valid(_KIND, each.model, each.spec).model_dump()
            await self._declared.apply(_KIND, each.model, spec, owner=OWNER, force=False, dry_run=False)
        except (StoreUnavailable, _LeadsNoMore):
            raise
        except Conflict:
            return conflict(owner, each.model)
        except ModelNotFound as exc:
            return refused("NoSuchModel", str(exc))
        except InvalidRequest as exc:
            return refused("Invalid", str(exc))
        except ControlPlaneError as exc:
            return refused("Refused", str(exc))
        except Exception as exc:  # a defect, which one resource must not bring upon all others
            _log.exception("Model %.100s cannot be applied", each.name)
            return refused("Failed", f"the gateway could not apply it: {type(exc).__name__}; its log says more")
        return APPLIED

    async def _tell(self, resources: Sequence[ModelResource]) -> None:
        """Write the status of each resource whose status has changed."""
        for number, each in enumerate(resources):
            await _let_others_on(number)
            of, accepted = self._accepted.get(each.name, (None, NOT_YET))
            if of != (each.uid, each.generation):
                continue
            ready, replicas = Condition("Unknown", "NotAccepted", "what it says is not in force"), 0
            if accepted is APPLIED:
                progress = self._models.progress(each.model)
                ready, replicas = readiness(self._models.desired.get(each.model), progress), progress.ready
            status = status_of(each.status, generation=each.generation, accepted=accepted, ready=ready, replicas=replicas, now=self._now())
            if status != each.status:
                self._require_leadership()
                await self._put_status(each, status)

    async def _put_status(self, each: ModelResource, status: Mapping[str, Any]) -> None:
        """Write a status. One that is not taken, such as that of a resource of before its definition was changed, holds up no other."""
        try:
            await self._resources.put_status(each.object, status)  # changed meanwhile: the watch brings it, and the next turn looks again
        except InvalidRequest as exc:
            if self._rejected.get(each.name) != str(exc):
                _log.warning("the API server does not take the status of Model %.100s: %s", each.name, exc)
            self._rejected[each.name] = str(exc)
        else:
            self._rejected.pop(each.name, None)

    def _require_leadership(self) -> None:
        if not self._is_leader():
            raise _LeadsNoMore


async def _let_others_on(number: int) -> None:
    """Let requests of this process through before each `_AT_ONCE`th resource."""
    if number % _AT_ONCE == 0:
        await asyncio.sleep(0)
