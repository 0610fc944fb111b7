from __future__ import annotations

import pytest

from control_plane.tuning.domain.candidates import DEFAULT, Candidate, Knob


def test_changes_are_in_one_order_however_they_were_made() -> None:
    one = DEFAULT.changed(Knob.THREADS, 1).changed(Knob.INSTANCES, 2)
    other = DEFAULT.changed(Knob.INSTANCES, 2).changed(Knob.THREADS, 1)
    assert one == other
    assert one.changes == ((Knob.INSTANCES, 2), (Knob.THREADS, 1))
    assert hash(one) == hash(other)


def test_a_knob_is_turned_once_and_can_be_turned_back() -> None:
    twice = DEFAULT.changed(Knob.INSTANCES, 2).changed(Knob.INSTANCES, 4)
    assert twice == Candidate(((Knob.INSTANCES, 4),))
    assert twice.changed(Knob.INSTANCES, None) == DEFAULT
    assert DEFAULT.changed(Knob.LANES, None) == DEFAULT


def test_zero_is_a_value() -> None:
    assert DEFAULT.changed(Knob.QUEUE_DELAY, 0) != DEFAULT


@pytest.mark.parametrize(
    ("candidate", "label", "flags"),
    [
        pytest.param(DEFAULT, "default", (), id="default"),
        pytest.param(DEFAULT.changed(Knob.QUEUE_DELAY, 100), "queue delay 100 us", (), id="config only"),
        pytest.param(
            DEFAULT.changed(Knob.TRITON_CPUS, "1-7").changed(Knob.INSTANCES, 2),
            "instances 2, Triton CPUs 1-7",
            ("--triton-cpus", "1-7"),
            id="both",
        ),
        pytest.param(DEFAULT.changed(Knob.MODEL_CPUS, "1"), "model CPUs 1", ("--model-cpus", "1"), id="flag only"),
    ],
)
def test_label_and_flags(candidate: Candidate, label: str, flags: tuple[str, ...]) -> None:
    assert candidate.label == label
    assert candidate.serve_flags == flags
