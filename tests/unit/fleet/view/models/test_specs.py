from __future__ import annotations

import pytest

from control_plane.fleet.domain.fleet import Fleet
from control_plane.fleet.domain.memory import DesiredState
from control_plane.fleet.view.models.measurements import Measurements
from control_plane.fleet.view.models.specs import ModelSpecs
from control_plane.models.domain.description import DescribedModel, ModelSpec


def spec_of(model: DescribedModel, wish: DesiredState | None = None, pin: int | None = None) -> ModelSpec:
    """The specification by which a fleet decides on a model of this folder, given what an administrator and the
    command line want of it."""
    fleet = Fleet()
    specs = ModelSpecs(fleet, Measurements(fleet, now_s=lambda: 0.0, today_s=lambda: 0.0))
    specs.describe({model.spec.name: model})
    specs.apply_wishes({} if wish is None else {model.spec.name: wish, "other": DesiredState(9)})
    if pin is not None:
        specs.pin(model.spec.name, pin)
    return fleet.models[model.spec.name].spec


@pytest.mark.parametrize(
    ("wish", "pin", "least"),
    [
        pytest.param(None, None, 3, id="as its folder says"),
        pytest.param(None, 4, 4, id="as this process was started"),
        pytest.param(DesiredState(), 4, 4, id="administrators who say nothing of it"),
        pytest.param(DesiredState(5), 4, 5, id="administrators"),
        pytest.param(DesiredState(1), None, 3, id="a load does not stand against its folder"),
        pytest.param(DesiredState(1), 1, 3, id="nor does the command line"),
        pytest.param(DesiredState(2, is_suspended=True), 1, 0, id="what is unloaded is kept nowhere"),
    ],
)
def test_who_says_how_many_replicas_are_kept(wish: DesiredState | None, pin: int | None, least: int) -> None:
    assert spec_of(DescribedModel(ModelSpec("a", 1, min_replicas=3), 1), wish, pin).min_replicas == least


@pytest.mark.parametrize(("has_sequences", "most", "found"), [(True, None, 1), (True, 3, 3), (False, None, None), (False, 2, 2)])
def test_what_has_sequences_has_one_replica_unless_its_owner_says_otherwise(
    has_sequences: bool, most: int | None, found: int | None
) -> None:
    model = DescribedModel(ModelSpec("a", max_replicas=most), 1, has_sequences=has_sequences)
    assert spec_of(model).max_replicas == found


def test_what_has_sequences_has_as_many_as_its_owner_wants_at_least() -> None:
    model = DescribedModel(ModelSpec("a", min_replicas=2), 1, has_sequences=True)
    assert spec_of(model).max_replicas == 2
