"""Desired state of the fleet's models, merged from their folders, this process's command line and administrators.

It belongs to `fleet/view/state`. `fleet/view/files` adds what the folders say and where the files are, `fleet/view/memory` what
administrators want and what other processes have measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from control_plane.core.errors import ModelLoadFailed
from control_plane.fleet.domain.fleet import Fleet, ModelFacts
from control_plane.fleet.domain.memory import DesiredState, Measured
from control_plane.fleet.view.models.measurements import FIRST_LOAD_S, Measurements
from control_plane.fleet.view.models.tiers import Tiers
from control_plane.models.domain.description import DescribedModel, ModelSpec, Tier
from control_plane.sharding.domain.plan import read_plan

_NOTHING = DesiredState()


class ModelSpecs:
    """Desired state of the fleet's models; it keeps the `ModelFacts` of a `Fleet` in line with their folders and
    their tiers."""

    def __init__(self, fleet: Fleet, measurements: Measurements) -> None:
        self.described: Mapping[str, DescribedModel] = {}
        """Model -> what its folder says of it."""
        self.wishes: Mapping[str, DesiredState] = {}
        """Model -> what administrators want."""
        self._pins: dict[str, int] = {}
        """Model -> replicas that this process was started to keep."""
        self._tiers: Tiers | None = None
        self._fleet = fleet
        self._measurements = measurements

    # Folders

    def describe(self, described: Mapping[str, DescribedModel], tiers: Tiers | None = None) -> None:
        """Take over the models there are, as their folders describe them, and the `tiers` that their files
        are in. Measurements stand."""
        for _ in self.describing(described, tiers):
            pass

    def describing(self, described: Mapping[str, DescribedModel], tiers: Tiers | None = None) -> Iterator[None]:
        """Do as `describe` in steps of one model, some ten microseconds each, between which requests may be let through."""
        self.described, self._tiers = described, tiers
        for name, model in described.items():
            self._describe(name, model)
            yield
        for name in self._fleet.models.keys() - described.keys():
            # A model without a folder is forgotten only once no server has it: its replicas may still be
            # serving.
            if not self._fleet.replicas(name):
                del self._fleet.models[name]

    def _describe(self, name: str, model: DescribedModel) -> None:
        """Bring one model's facts in line with its folder, its tier and what is known of it."""
        facts = self._fleet.models.get(name)
        if facts is None:
            service_s = self._measurements.first_service_s(name)
            facts = self._fleet.models[name] = ModelFacts(model.spec, 0, load_s=FIRST_LOAD_S, service_s=service_s)
            # A quarantine outlives the process that imposed it.
            self._measurements.quarantine(facts)
        facts.spec = self._merged(model)
        is_here = model.fetch_s is None if self._tiers is None else self._tiers.tier_of(name) is Tier.WARM
        facts.tier = Tier.WARM if is_here else Tier.COLD
        self._measurements.describe(facts, model, fetch_s=self.fetch_s(name))

    def recall(self, measured: Mapping[str, Measured | None]) -> None:
        """Take over what other processes, or an earlier run of this one, have measured; None means that a
        model is forgotten."""
        for name, known in measured.items():
            self._measurements.recall(name, known)
            if name in self.described:
                self._describe(name, self.described[name])

    def fetch_s(self, model: str) -> float:
        """Return how long a fetch of the model's files is expected to take; 0 where none is needed."""
        if self._tiers is not None:
            return self._tiers.expected_fetch_s(model)
        return 0.0 if (known := self.described.get(model)) is None else known.fetch_s or 0.0

    def has_sequences(self, model: str) -> bool:
        """Whether requests of the model form sequences whose state a replica holds; False for models that
        have no folder here."""
        described = self.described.get(model)
        return described is not None and described.has_sequences

    def steps_of(self, model: str) -> frozenset[str]:
        """The models that an ensemble needs, as far as its folder is here."""
        described = self.described.get(model)
        return frozenset() if described is None else described.steps

    def steps_are_its_own(self, server: str, model: str) -> bool:
        """Whether an ensemble's steps may be unloaded with it: no other ensemble on the server needs them."""
        steps = self.steps_of(model)
        others = {step for other in self._fleet.servers[server].replicas if other != model for step in self.steps_of(other)}
        return bool(steps) and steps.isdisjoint(others)

    def parts_of(self, model: str) -> tuple[str, ...]:
        """The parts of a sharded model, which are loaded in its place; none for any other, and where its steps cannot be
        carried out."""
        facts = self._fleet.models.get(model)
        if facts is None or not facts.spec.sharded:
            return ()
        try:
            return read_plan(facts.spec.sharded).parts
        except ModelLoadFailed:
            return ()

    # What is wanted

    def pin(self, model: str, min_replicas: int) -> None:
        """Keep this number of replicas loaded while this process runs, unless an administrator has suspended
        the model."""
        self._pins[model] = min_replicas
        self._specify(model)

    def apply_wishes(self, wishes: Mapping[str, DesiredState]) -> None:
        """Take over the desired state that administrators have set, in place of the one before."""
        before, self.wishes = self.wishes, wishes
        for model in before.keys() | wishes.keys():
            if before.get(model) != wishes.get(model):
                self._specify(model)

    def is_suspended(self, model: str) -> bool:
        """Whether an administrator has suspended the model, so that no request loads it."""
        wish = self.wishes.get(model)
        return wish is not None and wish.is_suspended

    def _specify(self, model: str) -> None:
        if model in self._fleet.models and model in self.described:
            self._fleet.models[model].spec = self._merged(self.described[model])

    def _merged(self, model: DescribedModel) -> ModelSpec:
        """Return a model's specification: the source that wants the most replicas wins, and a model that an
        administrator suspended has none."""
        name, most = model.spec.name, model.spec.max_replicas
        wish = self.wishes.get(name, _NOTHING)
        least = max(model.spec.min_replicas, self._pins.get(name, 0), wish.min_replicas or 0)
        least = 0 if wish.is_suspended or model.spec.sharded else least
        # Models with sequences get one replica unless their owner says otherwise, by either bound: so every
        # process sends a sequence to the same place.
        most = max(1, model.spec.min_replicas) if model.has_sequences and most is None else most
        # Most are as their folders say: thousands are merged every few seconds, and a copy takes longest.
        is_same = (least, most) == (model.spec.min_replicas, model.spec.max_replicas)
        return model.spec if is_same else replace(model.spec, min_replicas=least, max_replicas=most)
