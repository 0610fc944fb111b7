"""The fleet's state with a clock that a test sets."""

from __future__ import annotations

from control_plane.core.model import ModelVersion
from control_plane.fleet.domain.fleet import Replica
from control_plane.fleet.view.reservations import Reservation
from control_plane.fleet.view.state import FleetState
from control_plane.models.domain.description import DescribedModel
from control_plane.triton.servers import Servers
from tests.fakes import FakeUpstream
from tests.unit.fleet.fleet_bench import model

MODELS = (model("a"), model("b"), model("both", 100, steps=frozenset({"a", "b"})), model("other", 70, steps=frozenset({"b"})))


class State(FleetState):
    """View of servers s0 and s1, of which s0 is up, with a clock that a test sets."""

    def __init__(self, *models: DescribedModel, logs: bool = False) -> None:
        self.at_s = 100.0
        self.upstream = FakeUpstream()
        self.members = Servers(None, ("s0", "s1"))
        super().__init__(self.members, budget_bytes=1000, now_s=lambda: self.at_s, logs=logs)
        self.members.up(self.upstream)
        self.specs.describe({each.spec.name: each for each in models or MODELS})

    @property
    def replicas(self) -> dict[str, Replica]:
        return self.fleet.servers["s0"].replicas

    def see(self, **states: object) -> None:
        self.observe("s0", [ModelVersion(name, "1", state, "") for name, state in states.items()])  # type: ignore[arg-type]

    def take(self, name: str) -> Reservation:
        claim = self.reserve(name, "s0")
        assert claim is not None
        return claim
