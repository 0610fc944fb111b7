from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.fleet.domain.memory import EVERYWHERE, DesiredState, Progress
from control_plane.operator.domain.status import APPLIED, Condition, readiness, refused, status_of

IDLE = Progress(ready=0, held=0, missing=3)
TWO, ALL, NONE, GONE = (
    DesiredState(min_replicas=2),
    DesiredState(min_replicas=EVERYWHERE),
    DesiredState(min_replicas=0),
    DesiredState(min_replicas=0, is_suspended=True),
)
LOADED = Condition("True", "Loaded")


@pytest.mark.parametrize(
    ("desired", "progress", "status", "reason"),
    [
        pytest.param(None, IDLE, "Unknown", "Pending", id="nobody has taken it up"),
        pytest.param(TWO, IDLE, "False", "Waiting", id="nothing yet"),
        pytest.param(TWO, replace(IDLE, is_loading=True), "False", "Loading", id="loading"),
        pytest.param(TWO, replace(IDLE, ready=1), "False", "Waiting", id="one of two"),
        pytest.param(TWO, replace(IDLE, ready=2, failure="x"), "True", "Loaded", id="two, whatever failed before"),
        pytest.param(TWO, replace(IDLE, ready=3), "True", "Loaded", id="more than wanted"),
        pytest.param(TWO, replace(IDLE, ready=1, failure="no CUDA"), "False", "LoadFailed", id="failed"),
        pytest.param(NONE, IDLE, "True", "OnDemand", id="requests load it"),
        pytest.param(ALL, replace(IDLE, ready=2, missing=1), "False", "Waiting", id="everywhere but one"),
        pytest.param(ALL, replace(IDLE, ready=3, missing=0), "True", "Loaded", id="everywhere"),
        pytest.param(ALL, replace(IDLE, missing=0), "False", "Waiting", id="no server suits it"),
        pytest.param(GONE, IDLE, "True", "Suspended", id="suspended"),
        pytest.param(GONE, replace(IDLE, held=1), "False", "Unloading", id="on its way out"),
    ],
)
def test_a_model_is_ready_when_the_fleet_is_as_its_resource_says(
    desired: DesiredState | None, progress: Progress, status: str, reason: str
) -> None:
    found = readiness(desired, progress)
    assert (found.status, found.reason) == (status, reason)
    assert found.message == (progress.failure if reason == "LoadFailed" else found.message)


def test_a_status_in_which_nothing_has_changed_is_equal_to_the_last() -> None:
    first = status_of({}, generation=1, accepted=APPLIED, ready=LOADED, replicas=2, now="10:00")
    assert status_of(first, generation=1, accepted=APPLIED, ready=LOADED, replicas=2, now="11:00") == first


def test_only_a_change_of_the_status_is_a_transition() -> None:
    first = status_of({}, generation=1, accepted=APPLIED, ready=Condition("False", "Loading"), replicas=0, now="10:00")
    again = status_of(first, generation=2, accepted=APPLIED, ready=Condition("False", "Waiting"), replicas=0, now="11:00")
    assert [each["lastTransitionTime"] for each in again["conditions"]] == ["10:00", "10:00"]
    assert [(each["reason"], each["observedGeneration"]) for each in again["conditions"]] == [("Applied", 2), ("Waiting", 2)]
    ready = status_of(again, generation=2, accepted=APPLIED, ready=LOADED, replicas=1, now="12:00")
    assert [each["lastTransitionTime"] for each in ready["conditions"]] == ["10:00", "12:00"]


def test_a_message_has_an_end() -> None:
    made = status_of({}, generation=1, accepted=refused("Invalid", "x" * 10**6), ready=LOADED, replicas=0, now="")
    assert len(made["conditions"][0]["message"]) == 1024


@pytest.mark.parametrize("before", [{"conditions": None}, {"conditions": ["no mapping"]}, {"conditions": [{}]}])
def test_a_status_that_somebody_else_wrote_is_replaced(before: dict[str, object]) -> None:
    made = status_of(before, generation=1, accepted=APPLIED, ready=LOADED, replicas=2, now="10:00")
    assert [each["lastTransitionTime"] for each in made["conditions"]] == ["10:00", "10:00"]
