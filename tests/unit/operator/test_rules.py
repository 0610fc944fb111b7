"""The rule of kind Model's definition, run: it allows what `tidegate apply` takes, and nothing that says two things or none."""

from __future__ import annotations

import re
from itertools import product
from typing import Any, cast

import pytest

from control_plane.admin.declared.kinds import KINDS, ModelSpec, require_valid
from control_plane.admin.declared.service import desired_state
from control_plane.core.errors import InvalidRequest
from control_plane.operator.definition import definition
from tests.unit.operator.rules import Rule

(VERSION,) = definition()["spec"]["versions"]
SPEC = VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"]
(ONLY,) = SPEC["x-kubernetes-validations"]
RULE = Rule(ONLY["rule"], SPEC)

VALUES: dict[str, tuple[Any, ...]] = {"min_replicas": (None, 0, 2), "everywhere": (None, False, True), "is_suspended": (None, False, True)}
EVERY = [{name: value for name, value in zip(VALUES, values, strict=True) if value is not None} for values in product(*VALUES.values())]


def said(spec: dict[str, Any]) -> list[str]:
    """Which of the three it says."""
    return [name for name, value in spec.items() if value is True or name == "min_replicas"]


@pytest.mark.parametrize("spec", EVERY, ids=str)
def test_one_of_three_has_to_be_said(spec: dict[str, Any]) -> None:
    assert RULE.allows(spec) == (len(said(spec)) == 1)
    assert RULE.allows({**spec, "model": "text_embedding"}) == RULE.allows(spec)


@pytest.mark.parametrize("spec", EVERY, ids=str)
def test_it_refuses_what_the_gateway_refuses_in_the_same_words(spec: dict[str, Any]) -> None:
    wanted = cast("ModelSpec", require_valid(KINDS["Model"], "m", spec))
    if RULE.allows(spec):
        assert desired_state("m", wanted)
    else:
        with pytest.raises(InvalidRequest, match=f": {re.escape(ONLY['message'])}$"):
            desired_state("m", wanted)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("self.min_replicas", "self.minReplicas", id="a field that is not there"),
        pytest.param("self.everywhere,", "self.model,", id="a text for a boolean"),
        pytest.param("size() == 1", "size() == '1'", id="a number compared with a text"),
        pytest.param("given, given", "given", id="a macro with too little"),
    ],
)
def test_a_rule_that_is_wrong_by_its_types_does_not_compile(before: str, after: str) -> None:
    assert before in ONLY["rule"]
    with pytest.raises(RuntimeError):
        Rule(ONLY["rule"].replace(before, after), SPEC)
