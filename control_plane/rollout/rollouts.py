"""Rollouts: begins them, judges what became of their requests, and writes each step to the state store.

A step is one compare-and-swap of the stored rollout, with the leader's fencing token; what is decided next follows from
what is stored (`domain/machine`), so that after the leader's death another goes on where it was. Only the leader goes
forward. Any process that finds the next model worse rolls back, for its own requests even while the store is away.
It is judged by what all gateways have seen (`shared_evidence`); while the store is away each rolls back by what it has
seen itself. Called by the admin API; `run` is a task of the gateway.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from uuid import uuid4

from control_plane.core.errors import Conflict, ControlPlaneError, ObjectNotFound, StoreUnavailable
from control_plane.inference.domain.observation import Observation
from control_plane.objects.domain.rollout import Agreement, Phase, Rollout, Step
from control_plane.objects.domain.route import WHOLE, Route, arm_name
from control_plane.objects.domain.stored_objects import check
from control_plane.objects.mirror import ObjectMirror
from control_plane.objects.objects import ALL, Objects, Part, Versioned
from control_plane.rollout.contracts import ContractReader
from control_plane.rollout.domain.agreement import completed
from control_plane.rollout.domain.contract import Contract, require_output, why_not_copied
from control_plane.rollout.domain.deaths import Deaths
from control_plane.rollout.domain.evidence import Evidence
from control_plane.rollout.domain.findings import Findings, GateStatus
from control_plane.rollout.domain.machine import GateVerdict, Hold, began, held_by, next_by_itself, promoted_route
from control_plane.rollout.ports import Copies
from control_plane.rollout.shared_evidence import SharedEvidence

_log = logging.getLogger(__name__)

_TICK_S = 0.25
_WAIT_S = 1.0
_AFTER_DEFECT_S = 5.0


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """Specification of a rollout, as an administrator asks for it."""

    model: str
    steps: tuple[Step, ...]
    version: str = ""
    slower_by: float = 1.1
    alpha: float = 0.01
    shadow: Step | None = None
    agreement: Agreement | None = None
    bake_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """Status of a rollout by what has been seen of it: by all gateways, as far as this one knows."""

    gates: tuple[GateStatus, ...] = ()
    step_samples: int = 0
    left_s: float | None = None
    """Seconds until the present step has its samples, at the present rate; None where there are none yet."""
    held_by: Hold | None = None
    """Why it stays at its stage."""
    doubt: str = ""
    """Why no step is over though it has its samples: one tenant alone speaks against the next model."""


class Rollouts:
    """Service for rollouts, of one gateway."""

    def __init__(
        self,
        objects: Objects,
        known: ObjectMirror,
        contracts: ContractReader,
        *,
        shared: SharedEvidence | None = None,
        copies: Copies | None = None,
        fencing_token: Callable[[], int | None] = lambda: 0,
        now_s: Callable[[], float] = time.time,
        wait_s: float = _WAIT_S,
    ) -> None:
        """A change by an administrator waits up to `wait_s` until it shows in this process. `fencing_token` returns the token of
        this process's lease, None while it is not the leader; 0 where no other process can be, and there `shared` is None.
        `copies` is None where each server has all models. `now_s` is seconds since 1970."""
        self._objects = objects
        self._known = known
        self._contracts = contracts
        self._shared = shared
        self._copies = copies
        self._fencing_token = fencing_token
        self.now_s = now_s
        self._wait_s = wait_s
        self._evidence: dict[str, tuple[Evidence, int]] = {}
        """Evidence by the id of its rollout, with the stage that it is at."""
        self._deaths: dict[str, Deaths] = {}
        self._doubted: set[str] = set()
        """Rollouts that hold since one tenant alone speaks against them: said once each."""
        self._starting: dict[str, Rollout] = {}
        self.sources: list[Callable[[], Iterable[Observation]]] = []
        """Where observations are taken from, at each tick."""
        self.on_given_up: Callable[[str], None] = lambda rollout_id: None
        """Told the id of a rollout that this gateway has found to be worse, for its other processes."""

    async def start(self, route: str, spec: RolloutSpec, *, by: str = "") -> Versioned[Rollout]:
        """Begin a rollout of a route.

        Raises ObjectNotFound: there is no such route. Conflict: one is under way, the route has targets of its own, or the
        next model breaks what callers of the present one rely on. InvalidRequest: something is asked for that there is not.
        ModelNotFound, UpstreamUnavailable, UpstreamFailed, DeadlineExceeded, StoreUnavailable.
        """
        stored = (await self._objects.get(Route, route)).value
        if stored.targets:
            raise Conflict(f"route {route!r} has targets of its own; remove them first: `tidegate routes set {route} --target none`")
        before = await self._last(route)
        if before is not None and before.value.is_under_way:
            raise Conflict(f"a rollout of route {route!r} is under way, to {before.value.model}; promote or abort it first")
        if (spec.model, spec.version) == (stored.model, stored.version):
            raise Conflict(f"route {route!r} has model {arm_name(spec.model, spec.version)!r} already")
        fresh = self._fresh(stored, spec)
        check(fresh)
        self._require_room(fresh)
        contract = await self._require_kept(fresh)
        if fresh.agreement is not None:
            require_output(contract, fresh.agreement.output)
        fresh, why_no_shadow = self._with_shadow(fresh, contract, stored)
        events = () if before is None else before.value.events
        written = began(fresh, now_s=self.now_s(), by=by, before=events, why_no_shadow=why_no_shadow)
        return await self._write(written, 0 if before is None else before.resource_version)

    async def _require_kept(self, fresh: Rollout) -> Contract:
        """Compare the models of a rollout that is to begin; neither copies go for the other's sake meanwhile."""
        self._starting[fresh.route] = fresh
        self._keep_copies()
        try:
            return await self._contracts.require_kept((fresh.stable, fresh.stable_version), (fresh.model, fresh.version))
        finally:
            self._starting.pop(fresh.route, None)

    async def mirror_warnings(self, route: Route) -> list[str]:
        """Return why copies to a route's mirror would fail, or why none are made, a sentence each. Loads no model.

        Raises ModelNotFound: a single server has one of the models not loaded; UpstreamUnavailable, UpstreamFailed, DeadlineExceeded.
        """
        if (mirror := route.mirror) is None:
            return []
        if self._copies is not None and (absent := [each for each in (route.model, mirror.model) if not self._copies.ready(each)]):
            return [f"model {absent[0]!r} is not loaded now, so whether copies to the mirror would succeed is unknown"]
        try:
            contract = await self._contracts.require_kept((route.model, route.version), (mirror.model, mirror.version))
        except Conflict as exc:
            return [f"copies to the mirror will fail: {exc}"]
        why = why_not_copied(contract, route)
        return [f"no request of route {route.name!r} is copied to its mirror: {why}"] if why else []

    def _keep_copies(self) -> None:
        if self._copies is not None:
            self._copies.keep(_copies_needed([*self._known.rollouts.values(), *self._starting.values()]))

    def _fresh(self, route: Route, spec: RolloutSpec) -> Rollout:
        return Rollout(
            route.name,
            uuid4().hex,
            spec.model,
            route.model,
            spec.steps,
            spec.version,
            route.version,
            slower_by=spec.slower_by,
            alpha=spec.alpha,
            shadow=spec.shadow,
            agreement=None if spec.agreement is None else completed(spec.agreement),
            bake_s=spec.bake_s,
            copies=1 if self._copies is None else max(1, self._copies.ready(route.model)),
        )

    def _require_room(self, rollout: Rollout) -> None:
        """Raise Conflict if a fleet has no room for as many copies of the next model as of the present one, beside these."""
        if self._copies is None or rollout.model == rollout.stable:
            return
        stay = {rollout.stable: rollout.copies}
        if why := self._copies.why_no_room(rollout.model, rollout.copies_for(WHOLE), stay):
            raise Conflict(why)

    def _with_shadow(self, rollout: Rollout, contract: Contract, route: Route) -> tuple[Rollout, str]:
        """Return the rollout with the phase before its first step, and why it has no shadow though one was asked for."""
        why = why_not_copied(contract, route) if rollout.shadow is not None and rollout.shadow.weight else ""
        if why and rollout.agreement is not None:
            raise Conflict(f"answers can only be compared where requests are copied, and of route {route.name!r} {why}")
        shadow = None if why else rollout.shadow
        if shadow is None and self._copies is not None and self._copies.ready(rollout.model) < rollout.copies_for(rollout.steps[0].weight):
            shadow = Step(0, 0, 0.0)  # nothing is copied, but copies of the model come before weight
        return replace(rollout, shadow=shadow), why

    async def change(self, route: str, change: Callable[[Rollout], Rollout]) -> Versioned[Rollout]:
        """Change a rollout by hand: one of `domain/machine`'s `paused`, `resumed`, `promoted`, `aborted`.

        Raises ObjectNotFound, Conflict: it is not under way, or is just being changed; StoreUnavailable.
        """
        stored = await self.get(route)
        changed = change(stored.value)
        return stored if changed is stored.value else await self._write(changed, stored.resource_version)

    async def get(self, route: str) -> Versioned[Rollout]:
        """Return the last rollout of a route. Raises ObjectNotFound, StoreUnavailable."""
        return await self._objects.get(Rollout, route)

    async def list_all(self, part: Part = ALL) -> list[Versioned[Rollout]]:
        """Return the last rollout of each route, by route, or a part of them. Raises StoreUnavailable."""
        return await self._objects.list_all(Rollout, part)

    def latest(self, most: int) -> list[tuple[Rollout, RolloutStatus]]:
        """Return so many of the last rollouts of routes: those that are under way first, then those that ended last."""
        found = sorted(self._known.rollouts.values(), key=lambda each: (not each.is_under_way, -each.entered_s))
        return [(each, self.status(each)) for each in found[:most]]

    def status(self, rollout: Rollout) -> RolloutStatus:
        """Return what has been seen of a rollout."""
        alone = self._evidence[rollout.id][0].findings if rollout.id in self._evidence else None
        found = (None if self._shared is None else self._shared.findings(rollout)) or alone
        if found is None:
            return RolloutStatus()
        held = None if alone is None else held_by(rollout, self._verdict(rollout, alone), now_s=self.now_s())
        left_s = found.left_s(rollout.present_step.samples, self.now_s() - rollout.entered_s)
        return RolloutStatus(tuple(found.statuses), found.step_samples, left_s, held, found.doubt)

    async def run(self) -> None:
        """Judge and step until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                await self.tick()
            except Exception:  # a defect here must not end the gateway
                _log.exception("rollouts are at a standstill for %g s", _AFTER_DEFECT_S)
                await asyncio.sleep(_AFTER_DEFECT_S)

    async def tick(self) -> None:
        """Judge what has been seen since the last tick, and take each rollout a step further where that is due."""
        self._collect()
        self._keep_copies()
        for rollout in list(self._known.rollouts.values()):
            if not rollout.is_under_way:
                continue
            evidence = self._evidence_of(rollout)
            evidence.tick()
            verdict = self._verdict(rollout, evidence.findings)
            self._tell(rollout, verdict.doubt)
            try:
                await self._step(rollout, verdict)
            except Conflict:
                _log.debug("rollout of %s: another process was first", rollout.route)  # the mirror shows what it did
            except StoreUnavailable as exc:
                _log.debug("rollout of %s: the store is away: %s", rollout.route, exc)  # debug: the mirror says so, once
            except ControlPlaneError as exc:
                _log.error("rollout of %s: %s", rollout.route, exc)

    def _collect(self) -> None:
        known = {each.id: each for each in self._known.rollouts.values()}
        under_way = {rollout_id: each for rollout_id, each in known.items() if each.is_under_way}
        for rollout_id in self._evidence.keys() - under_way.keys():
            if rollout_id in known:
                self._evidence[rollout_id][0].forget_units()  # its findings are shown until the route's next begins
            else:
                del self._evidence[rollout_id]
        self._deaths = {each: deaths for each, deaths in self._deaths.items() if each in under_way}
        self._doubted &= under_way.keys()
        for source in self.sources:
            for seen in source():
                rollout = under_way.get(seen.rollout)
                if rollout is not None:
                    self._evidence_of(rollout).add(seen)
                    self._deaths.setdefault(rollout.id, Deaths()).add(seen, self.now_s())
                    if self._shared is not None:
                        self._shared.add(rollout, seen)

    def _tell(self, rollout: Rollout, doubt: str) -> None:
        if doubt and rollout.id not in self._doubted:
            self._doubted.add(rollout.id)
            _log.warning("rollout of %s to %s holds: %s", rollout.route, rollout.model, doubt)

    def _verdict(self, rollout: Rollout, alone: Findings) -> GateVerdict:
        copies = None if self._copies is None else self._copies.ready(rollout.model)
        deaths = self._deaths[rollout.id].why if rollout.id in self._deaths else ""
        together = alone if self._shared is None else self._shared.findings(rollout)
        if together is None:
            # Without the others' evidence no step is over, but what is worse by what was seen here is worse.
            return GateVerdict(alone.why or deaths, samples=0, copies=copies, knows_all=False)
        return GateVerdict(together.why or deaths, together.doubt, together.step_samples, copies)

    def _evidence_of(self, rollout: Rollout) -> Evidence:
        collected = self._evidence.get(rollout.id)
        evidence = Evidence(rollout) if collected is None else collected[0]
        if collected is not None and collected[1] != rollout.stage:
            evidence.begin_step()
        self._evidence[rollout.id] = (evidence, rollout.stage)
        return evidence

    async def _step(self, rollout: Rollout, verdict: GateVerdict) -> None:
        """Write the rollout's next state, if there is one. Raises Conflict, StoreUnavailable."""
        following = next_by_itself(rollout, self._known.stored_routes.get(rollout.route), verdict, now_s=self.now_s())
        is_back = following is not None and following.phase in (Phase.ROLLED_BACK, Phase.ABORTED)
        if following is not None and following.phase is Phase.ROLLED_BACK:
            # Before the store is asked, which may be away, or slow.
            self._known.give_up(rollout.id)
            self.on_given_up(rollout.id)
        token = self._fencing_token()
        if token is None and not is_back:
            return
        if following is None:
            if rollout.phase is Phase.PROMOTING:
                await self._promote(rollout)
            return
        stored = await self._objects.get(Rollout, rollout.route)
        if stored.value != rollout or (token and stored.value.token > token):
            return  # what was decided was about another state: the mirror will show it
        await self._objects.put(replace(following, token=token or stored.value.token), stored.resource_version)
        log = _log.warning if is_back else _log.info
        log("rollout of %s to %s: %s", rollout.route, rollout.model, following.events[-1].what)

    async def _promote(self, rollout: Rollout) -> None:
        """Write the promoted model into the route. Raises Conflict, StoreUnavailable."""
        stored = await self._objects.get(Route, rollout.route)
        route = promoted_route(rollout, stored.value)
        if route is not None:
            await self._objects.put(route, stored.resource_version)

    async def _last(self, route: str) -> Versioned[Rollout] | None:
        try:
            return await self.get(route)
        except ObjectNotFound:
            return None

    async def _write(self, rollout: Rollout, expected: int) -> Versioned[Rollout]:
        written = await self._objects.put(rollout, expected)
        await self._known.wait_for(written.resource_version, timeout_s=self._wait_s)
        return written


def _copies_needed(rollouts: Iterable[Rollout]) -> dict[str, int]:
    """The copies that all rollouts under way need, by model."""
    kept: dict[str, int] = {}
    for rollout in rollouts:
        for model, count in rollout.kept.items():
            kept[model] = max(count, kept.get(model, 0))
    return kept
