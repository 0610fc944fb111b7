from __future__ import annotations

import itertools
from collections import UserDict
from dataclasses import replace

import pytest

from control_plane.core.fingerprint import (
    Fingerprint,
    LoadedConfig,
    LoadedModel,
    ModelContents,
    callers,
    dependencies_of,
    dependents_of,
    digest_of,
    ensemble_closure,
    fingerprint_of,
)

KEEPS = LoadedConfig(b"c", response_cache=True)


def model(config: LoadedConfig = KEEPS, *, digest: bytes = b"d", steps: set[str] | None = None) -> LoadedModel:
    named = frozenset(steps or ())
    return LoadedModel(ModelContents(digest, frozenset(), named), replace(config, steps=named))


MODELS = {"a": model(), "b": model(), "e": model(steps={"a"}), "ee": model(steps={"e", "b"})}


def of(name: str, *, version: str = "1", **others: LoadedModel | None) -> Fingerprint | None:
    return fingerprint_of(name, {**MODELS, **others}, server_version=version)


def digest(name: str, *, version: str = "1", **others: LoadedModel | None) -> bytes:
    found = of(name, version=version, **others)
    assert found is not None
    return found.digest


def test_a_model_may_say_that_a_request_may_be_computed_twice_for_itself_but_not_for_those_that_it_is_a_step_of() -> None:
    declared = model(replace(KEEPS, may_be_computed_twice=True))
    told = [of(name, a=declared) for name in ("a", "b", "e")]
    assert [each is not None and each.may_be_computed_twice for each in told] == [True, False, False]


def test_the_same_is_the_same_everywhere_and_each_time_another_object() -> None:
    first, second = of("ee"), of("ee")
    assert first is not None
    assert second is not None
    assert first.digest == second.digest
    assert first != second
    assert len(first.digest) == 32


@pytest.mark.parametrize(
    "others",
    [
        pytest.param({"ee": model(digest=b"other", steps={"e", "b"})}, id="its files"),
        pytest.param({"ee": model(replace(KEEPS, content=b"other"), steps={"e", "b"})}, id="its configuration"),
        pytest.param({"ee": model(steps={"a", "b"})}, id="its steps"),
        pytest.param({"e": model(digest=b"other", steps={"a"})}, id="a step's files"),
        pytest.param({"a": model(digest=b"other")}, id="the files of a step's step"),
        pytest.param({"a": model(replace(KEEPS, content=b"other"))}, id="the configuration of a step's step"),
    ],
)
def test_of_an_ensemble_depends_on(others: dict[str, LoadedModel]) -> None:
    assert digest("ee", **others) != digest("ee")
    assert digest("b", **others) == digest("b")


def test_depends_on_the_server_and_the_name() -> None:
    assert digest("a", version="2") != digest("a")
    assert digest("a") != digest("b")


@pytest.mark.parametrize("unknown", ["a", "b", "e", "ee"])
def test_there_is_none_while_something_that_it_needs_is_not_certain(unknown: str) -> None:
    assert of("ee", **{unknown: None}) is None


def test_there_is_none_of_what_is_not_there() -> None:
    assert of("nowhere") is None
    assert of("x", x=model(steps={"nowhere"})) is None


@pytest.mark.parametrize(
    ("config", "keeps"),
    [
        (KEEPS, True),
        (replace(KEEPS, response_cache=False), False),
        (replace(KEEPS, is_repeatable=False), False),
    ],
)
def test_answers_are_kept_where_the_owner_says_so_and_they_can_repeat(config: LoadedConfig, keeps: bool) -> None:
    found = of("a", a=model(config))
    assert found is not None
    assert found.is_cacheable is keeps


def test_an_ensemble_keeps_answers_by_its_own_word_unless_a_step_cannot_repeat() -> None:
    silent = of("ee", a=model(replace(KEEPS, response_cache=False)))
    streaming = of("ee", a=model(replace(KEEPS, is_repeatable=False)))
    assert silent is not None
    assert streaming is not None
    assert (silent.is_cacheable, streaming.is_cacheable) == (True, False)


def test_what_needs_what() -> None:
    assert dependencies_of("ee", MODELS) == {"a", "b", "e", "ee"}
    assert dependencies_of("nowhere", MODELS) == {"nowhere"}
    assert dependents_of(["a"], MODELS) == {"a", "e", "ee"}
    assert dependents_of(["b", "nowhere"], MODELS) == {"b", "ee"}


class Counted(UserDict[str, LoadedModel | None]):
    """Models that count how often one is looked up."""

    lookups = 0

    def __getitem__(self, name: str) -> LoadedModel | None:
        self.lookups += 1
        return super().__getitem__(name)


def test_of_a_thousand_models_that_need_no_other_each_is_looked_up_once() -> None:
    models = Counted({f"m{number}": model() for number in range(1000)})
    assert dependents_of({"m7"}, models) == {"m7"}
    assert models.lookups == 1000


class TestCaller:
    """b's code may call any model, so b depends on every model; so does ee, of which b is a step."""

    CALLER = LoadedModel(ModelContents(b"d", frozenset(), frozenset(), calls_others=True), KEEPS)

    @pytest.mark.parametrize("name", ["b", "ee"])
    @pytest.mark.parametrize(
        "other", [model(), model(digest=b"other"), model(replace(KEEPS, content=b"other"))], ids=["new", "files", "configuration"]
    )
    def test_another_one_for_every_model_that_is_there(self, name: str, other: LoadedModel) -> None:
        found = {digest(name, b=self.CALLER), digest(name, b=self.CALLER, x=model(digest=b"x")), digest(name, b=self.CALLER, x=other)}
        assert len(found) == 3
        assert digest("a", b=self.CALLER, x=other) == digest("a")

    @pytest.mark.parametrize("name", ["b", "ee"])
    def test_unknown_while_any_model_is(self, name: str) -> None:
        assert of(name, b=self.CALLER, x=None) is None
        assert of("e", b=self.CALLER, x=None) is not None

    def test_needs_all_but_is_loaded_alone(self) -> None:
        models = {**MODELS, "b": self.CALLER, "x": None}
        assert dependencies_of("b", models) == dependencies_of("ee", models) == models.keys()
        assert ensemble_closure("b", models) == {"b"}
        assert dependents_of(["x"], models) == {"b", "ee", "x"}
        assert callers(models) == {"b"}

    def test_can_repeat_whatever_else_is_there(self) -> None:
        found = of("b", b=self.CALLER, x=model(replace(KEEPS, is_repeatable=False)))
        assert found is not None
        assert found.is_cacheable


def test_ensembles_in_a_circle_come_to_an_end() -> None:
    circle = {"x": model(steps={"y"}), "y": model(steps={"x"})}
    assert dependencies_of("x", circle) == {"x", "y"}
    assert fingerprint_of("x", circle, server_version="1") is not None


def test_where_one_part_ends_and_the_next_begins_matters() -> None:
    parts = [[b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"abc", b""], [b"", b"abc"], [b"2:ab1:c"], []]
    for one, other in itertools.combinations(parts, 2):
        assert digest_of(one) != digest_of(other)
