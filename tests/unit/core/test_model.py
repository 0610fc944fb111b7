from __future__ import annotations

import itertools

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.core.model import MODEL_NAME, ModelState, ModelVersion, check_reference, summarise


def line(version: str, state: ModelState, reason: str = "", name: str = "m") -> ModelVersion:
    return ModelVersion(name, version, state, reason)


def test_a_model_that_triton_does_not_list_is_unavailable() -> None:
    model = summarise("m", [line("1", ModelState.READY, name="other")])
    assert (model.name, model.state, model.reason, model.versions, model.memory_bytes) == ("m", ModelState.UNAVAILABLE, "", (), None)


@pytest.mark.parametrize(
    "states", list(itertools.permutations([ModelState.READY, ModelState.LOADING, ModelState.UNLOADING, ModelState.UNAVAILABLE]))
)
def test_the_best_version_tells_the_state_and_reason(states: tuple[ModelState, ...]) -> None:
    index = [line(str(number), state, f"why {state.value}") for number, state in enumerate(states)]
    while index:
        best = next(
            state
            for state in (ModelState.READY, ModelState.LOADING, ModelState.UNLOADING, ModelState.UNAVAILABLE)
            if any(each.state is state for each in index)
        )
        model = summarise("m", index)
        assert (model.state, model.reason) == (best, f"why {best.value}")
        index = [each for each in index if each.state is not best]


def test_versions_are_the_ready_ones() -> None:
    index = [
        line("1", ModelState.READY),
        line("2", ModelState.UNAVAILABLE),
        line("3", ModelState.READY),
        line("9", ModelState.READY, name="n"),
    ]
    assert summarise("m", index, 7).versions == ("1", "3")
    assert summarise("m", index, 7).memory_bytes == 7


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 255, "-a", "9", "org--name-1.0+cu118", "name:8b", "name@prod~1"])
def test_names(name: str) -> None:
    assert MODEL_NAME.fullmatch(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "a b", "a\n", "\u00e4", "a%2F", "x" * 256, "a\x00", "a;b", "a=b", "a,b", "@a", "(unknown)"]
)
def test_what_is_no_name(name: str) -> None:
    assert not MODEL_NAME.fullmatch(name)


@pytest.mark.parametrize("version", ["", "1", "01", "9" * 18])
def test_versions(version: str) -> None:
    check_reference("m", version)
    check_reference("", version)


@pytest.mark.parametrize("version", ["1abc", " 1", "1 ", "+1", "-1", "1\x00", "0x1", "\u0661", "1" * 19])
def test_what_is_no_version(version: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be a model's version"):
        check_reference("m", version)
