from __future__ import annotations

from typing import Any

import pytest

from control_plane.operator.domain.resource import claims, oldest_first, read


def resource(name: str, created: str = "10:00", **spec: object) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid of {name}", "generation": 3, "creationTimestamp": created}, "spec": spec}


def test_a_resource_names_its_model_or_is_named_like_it() -> None:
    plain, named = map(read, [resource("bert", min_replicas=2), resource("embedding", model="text_embedding", everywhere=True)])
    assert (plain.model, plain.spec, plain.generation) == ("bert", {"min_replicas": 2}, 3)
    assert (named.name, named.model, named.spec) == ("embedding", "text_embedding", {"everywhere": True})


def test_of_several_for_one_model_the_oldest_counts() -> None:
    made = [resource("c", "11:00", model="m"), resource("b", "10:00", model="m"), resource("a", "11:00"), resource("m", "12:00")]
    found = oldest_first(map(read, made))
    assert [each.name for each in found] == ["b", "a", "c", "m"]
    assert {model: each.name for model, each in claims(found).items()} == {"m": "b", "a": "a"}


@pytest.mark.parametrize("spec", [None, "text", [], {"model": 5}, {"model": ""}, {"model": None}])
def test_one_without_a_usable_specification_is_read_all_the_same(spec: object) -> None:
    found = read({"metadata": {"name": "m"}, "spec": spec, "status": "text"})
    assert (found.model, found.spec, found.status) == ("m", {}, {})
