"""Builders of small fleets for tests of the policies."""

from __future__ import annotations

from hypothesis import strategies as st

from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import NEVER_S, Fleet, ModelFacts, Replica, Server
from control_plane.models.domain.description import ModelSpec

NOW_S = 1000.0


def model(fleet: Fleet, name: str, *, uses_per_s: float = 0.0, idle_s: float = 1.0, size: int = 1, load_s: float = 1.0) -> ModelFacts:
    """Add a model that has long been used at this rate, last `idle_s` ago."""
    facts = ModelFacts(ModelSpec(name), size, load_s, 0.01)
    if uses_per_s:
        facts.rate_fast = facts.rate_slow = uses_per_s
        facts.last_used_s = NOW_S - idle_s
    fleet.models[name] = facts
    return facts


def server(fleet: Fleet, name: str, *models: str, budget: int = 2, work_s: float = 0.0, parallel: int = 1) -> Server:
    """Add a server with replicas that have long been ready; unknown models are added."""
    made = Server(name, budget, work_s=work_s, parallel=parallel)
    for each in models:
        facts = fleet.models.get(each) or model(fleet, each)
        made.replicas[each] = Replica(each, ModelState.READY, facts.resident_bytes, NOW_S - 500.0)
    fleet.add_server(made)
    return made


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Hypothesis strategy: any fleet whose servers are within their budgets."""
    fleet = Fleet()
    for number in range(draw(st.integers(1, 12))):
        facts = ModelFacts(
            ModelSpec(
                f"m{number}", min_replicas=draw(st.sampled_from([0, 0, 0, 1, 2])), max_replicas=draw(st.sampled_from([None, None, 1, 2]))
            ),
            resident_bytes=draw(st.integers(1, 5)),
            load_s=draw(st.floats(0.01, 60)),
            service_s=draw(st.floats(0.001, 1)),
        )
        if draw(st.booleans()):
            facts.rate_fast, facts.rate_slow = draw(st.floats(0.001, 500)), draw(st.floats(0.001, 500))
            facts.last_used_s = NOW_S - draw(st.floats(0, 1000))
        facts.refused_since_s = draw(st.sampled_from([NEVER_S, NEVER_S, NOW_S - 5.0, 0.0]))
        facts.quarantined_until_s = draw(st.sampled_from([NEVER_S, NEVER_S, NEVER_S, NOW_S + 7.0]))
        fleet.models[facts.name] = facts
    for number in range(draw(st.integers(0, 6))):
        fleet.add_server(draw(_servers(f"s{number}", fleet)))
    return fleet


@st.composite
def _servers(draw: st.DrawFn, name: str, fleet: Fleet) -> Server:
    made = Server(
        name,
        draw(st.integers(1, 12)),
        pool=draw(st.sampled_from(["", "short", "long"])),
        is_up=draw(st.sampled_from([True, True, True, False])),
        is_ejected=draw(st.sampled_from([False, False, False, True])),
        work_s=draw(st.floats(0, 10)),
        parallel=draw(st.integers(1, 4)),
        loads_until_s=draw(st.sampled_from([NEVER_S, NOW_S + 3.0])),
        serves_while_loading=draw(st.booleans()),
    )
    for each in draw(st.lists(st.sampled_from(sorted(fleet.models)), unique=True)):
        size = fleet.models[each].resident_bytes
        if size <= made.free_bytes:
            state = draw(st.sampled_from([ModelState.READY, ModelState.READY, ModelState.READY, ModelState.LOADING, ModelState.UNLOADING]))
            since_s = NOW_S - draw(st.floats(0, 200))
            busy, sequences = draw(st.sampled_from([0, 0, 0, 2])), draw(st.sampled_from([0, 0, 0, 1]))
            made.replicas[each] = Replica(
                each, state, size, since_s, NOW_S + 1.0, NEVER_S, busy, sequences, draw(st.sampled_from([False] * 9 + [True]))
            )
    return made
