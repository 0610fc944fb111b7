"""Service that applies declared objects: a three-way merge of what is given, what was given before, and what is there.

Each object that was applied has an owner (field manager). Fields that its owner gave and gives no more get their
defaults; fields that others have set, such as by `tidegate tenants set`, stay. Called by `admin/declared/paths`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from control_plane.admin.declared.kinds import DeclaredKind, ModelSpec, require_valid
from control_plane.audit.domain.entry import Actor
from control_plane.audit.trail import AuditTrail
from control_plane.core.errors import Conflict, InvalidRequest, NotSupported, ObjectNotFound
from control_plane.fleet.administration import FleetModels
from control_plane.fleet.domain.memory import EVERYWHERE, DesiredState
from control_plane.objects.domain.applied import Applied, merged, record_name
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.objects import Objects


class Outcome(StrEnum):
    """Outcome of applying one declared object, or of a dry run of that."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Live:
    """An object as it is now."""

    name: str
    spec: Mapping[str, Any]
    resource_version: int
    """0 for a fleet's model, which has none."""
    owner: str = ""
    """Who applies it; empty where nobody does."""


@dataclass(frozen=True, slots=True)
class Application:
    """Result of applying one object: the outcome, and its fields before and after."""

    outcome: Outcome
    before: Mapping[str, Any] | None
    after: Mapping[str, Any]
    value: object
    """The object that is stored; None for a fleet's model."""


class Declared:
    """Service that reads, applies and deletes declared objects. Every method raises StoreUnavailable."""

    def __init__(self, objects: Objects, models: FleetModels | None, trail: AuditTrail, actor: Actor) -> None:
        """`models` is None for a single Triton."""
        self._objects = objects
        self._models = models
        self._trail = trail
        self._actor = actor

    def by(self, actor: Actor) -> Declared:
        """Return the same service on behalf of an actor, who is in the audit log with each change."""
        return Declared(self._objects.by(actor), self._models, self._trail, actor)

    async def list_all(self, kind: DeclaredKind) -> list[Live]:
        """List every object of a kind, by name."""
        owners = {held.value.name: held.value.owner for held in await self._objects.list_all(Applied) if held.value.kind == kind.name}
        if kind.type_ is None:
            found = self._models.desired if self._models is not None else {}
            return [Live(name, _model_spec(state), 0, owners.get(name, "")) for name, state in sorted(found.items())]
        held_all = await self._objects.list_all(kind.type_)
        return [Live(held.value.name, _spec(kind, held.value), held.resource_version, owners.get(held.value.name, "")) for held in held_all]

    async def get(self, kind: DeclaredKind, name: str) -> Live:
        """Read one object. Raises ObjectNotFound."""
        live, record = await self._live(kind, name), await self._record(kind, name)
        if live is None:
            raise ObjectNotFound(f"no {kind.name} {name[:100]!r}; `tidegate get {kind.name}` lists those there are")
        return Live(name, live.spec, live.resource_version, record.owner if record is not None else "")

    async def apply(
        self, kind: DeclaredKind, name: str, desired: Mapping[str, Any], *, owner: str, force: bool, dry_run: bool
    ) -> Application:
        """Make the object as `desired` says; with `dry_run` only say what that would change.

        Raises:
            InvalidRequest: fields that are not allowed; the text names all of them and what would be right.
            Conflict: another owner applies the object (with `force` it is taken over), or somebody has changed it
                meanwhile.
            NotSupported: a Model, and this gateway runs no fleet.
        """
        live, record = await self._live(kind, name), await self._record(kind, name)
        if live is not None and record is not None and record.owner != owner and not force:
            raise Conflict(
                f"{kind.name} {name!r} is applied by owner {record.owner!r}, not {owner!r}: change it there, "
                f"or take it over with --force (and take it out of the files of {record.owner!r})"
            )
        before = live.spec if live is not None else None
        last = record.spec if live is not None and record is not None and record.owner == owner else {}
        spec: Any = require_valid(kind, name, _merged(kind, before or {}, last, desired))
        after = _body(kind, name, spec)
        outcome = Outcome.CREATED if before is None else Outcome.UNCHANGED if before == after else Outcome.CHANGED
        if not dry_run:
            if outcome is not Outcome.UNCHANGED:
                await self._write(kind, name, spec, live)
            # After the object: if this process dies in between, the same file applied again finds the older record,
            # by which it takes away the same fields, and writes this one.
            applied = Applied(kind.name, name, owner, dict(desired))
            if applied != record:
                await self._objects.put(applied)
        return Application(outcome, before, after, None if kind.type_ is None else spec.named(name))

    async def delete(self, kind: DeclaredKind, name: str) -> None:
        """Delete an object, and the record of who applied it. Raises ObjectNotFound, Conflict."""
        if kind.type_ is not None:
            await self._objects.delete(kind.type_, name)
        elif self._models is None or name not in self._models.desired:
            raise ObjectNotFound(f"no {kind.name} {name[:100]!r}")
        else:
            before = _model_spec(self._models.desired[name])
            async with self._trail.recorded(self._actor, "delete", kind.name, name, before=before):
                await self._models.set_desired(name, None)
        await self._objects.forget_applied(kind.name, name)

    async def _live(self, kind: DeclaredKind, name: str) -> Live | None:
        if kind.type_ is None:
            state = self._models.desired.get(name) if self._models is not None else None
            return None if state is None else Live(name, _model_spec(state), 0)
        try:
            held = await self._objects.get(kind.type_, name)
        except ObjectNotFound:
            return None
        return Live(name, _spec(kind, held.value), held.resource_version)

    async def _record(self, kind: DeclaredKind, name: str) -> Applied | None:
        try:
            return (await self._objects.get(Applied, record_name(kind.name, name))).value
        except ObjectNotFound:
            return None

    async def _write(self, kind: DeclaredKind, name: str, spec: Any, live: Live | None) -> None:
        if kind.type_ is not None:
            await self._objects.put(spec.named(name), live.resource_version if live is not None else 0)
        elif self._models is None:
            raise NotSupported("a Model is the desired state of a model in a fleet, and this tidegate runs none; see docs/how-to/fleet.md")
        else:
            state, before = desired_state(name, spec), live.spec if live is not None else None
            action = "create" if live is None else "replace"
            async with self._trail.recorded(self._actor, action, kind.name, name, before=before, after=_model_spec(state)):
                await self._models.set_desired(name, state)


def _merged(kind: DeclaredKind, live: Mapping[str, Any], last: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """Merge as `merged` does, but remove an object that may be null, such as a route's mirror, as a whole once files no longer declare
    it: removing only the fields that they declared would leave an incomplete object."""
    fields = kind.spec.model_fields
    known = [name for name in last if name in fields]  # a newer gateway may have applied others
    gone = {name for name in known if name not in desired and isinstance(last[name], Mapping) and fields[name].default is None}
    return {name: value for name, value in merged(live, last, desired).items() if name not in gone}


def _body(kind: DeclaredKind, name: str, spec: Any) -> Mapping[str, Any]:
    """The fields that the object will have. Raises InvalidRequest."""
    if kind.type_ is None:
        return _model_spec(desired_state(name, spec))
    return _spec(kind, spec.named(name))


def _spec(kind: DeclaredKind, value: Any) -> Mapping[str, Any]:
    return {field: each for field, each in to_body(value).items() if field in kind.spec.model_fields}


def _model_spec(state: DesiredState) -> Mapping[str, Any]:
    everywhere = state.min_replicas == EVERYWHERE
    replicas = None if everywhere or state.is_suspended else state.min_replicas
    return ModelSpec(min_replicas=replicas, everywhere=everywhere, is_suspended=state.is_suspended).model_dump()


def desired_state(name: str, spec: ModelSpec) -> DesiredState:
    """Return what a document of kind Model says. Raises InvalidRequest: it says two things, or none."""
    if (spec.min_replicas is not None) + spec.everywhere + spec.is_suspended != 1:
        raise InvalidRequest(
            f"Model {name!r}: give one of min_replicas, everywhere: true and is_suspended: true; to let its folder decide, delete it"
        )
    if spec.is_suspended:
        return DesiredState(min_replicas=0, is_suspended=True)
    return DesiredState(min_replicas=EVERYWHERE if spec.everywhere else spec.min_replicas)
