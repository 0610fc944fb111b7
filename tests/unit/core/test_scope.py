from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.errors import InvalidRequest
from control_plane.core.model import MODEL_NAME
from control_plane.core.scope import EVERYTHING, Right, Scope, Scopes, parse_scope

NAMES = st.from_regex(MODEL_NAME, fullmatch=True)
PATTERNS = st.text("abAB09_.-*?", min_size=1, max_size=20)
SCOPES = st.one_of(st.builds(Scope, st.just(Right.INFER), PATTERNS), st.builds(Scope, st.sampled_from(sorted(set(Right) - {Right.INFER}))))


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("infer:*", Scope(Right.INFER, "*")),
        ("infer:text_*", Scope(Right.INFER, "text_*")),
        ("infer:a.b-c_?", Scope(Right.INFER, "a.b-c_?")),
        ("repository", Scope(Right.REPOSITORY)),
        ("admin", Scope(Right.ADMIN)),
        ("metrics", Scope(Right.METRICS)),
        ("viewer", Scope(Right.VIEWER)),
        ("operator", Scope(Right.OPERATOR)),
    ],
)
def test_reading(text: str, scope: Scope) -> None:
    assert parse_scope(text) == scope
    assert str(scope) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "infer", "infer:", "infer:[a-z]", "infer:a b", "infer:a/b", "infer:ä", "infer:" + "a" * 129, "infer:a\n", "INFER:*"),
        *("admin:", "admin:*", "repository:x", "Admin", "admin ", " admin", "root", ":", "*", "metrics:x", "openid"),
    ],
)
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"expected infer:GLOB .*, repository, events, metrics, viewer, operator or admin"):
        parse_scope(text)


@pytest.mark.parametrize(
    ("pattern", "name", "allowed"),
    [
        pytest.param("*", "anything", True, id="all"),
        pytest.param("text_*", "text_encoder", True, id="a beginning"),
        pytest.param("text_*", "text_", True, id="a star is also nothing"),
        pytest.param("text_*", "my_text_encoder", False, id="from the beginning"),
        pytest.param("text", "text_encoder", False, id="to the end"),
        pytest.param("Text", "text", False, id="case counts"),
        pytest.param("a.c", "abc", False, id="a dot is a dot"),
        pytest.param("a?c", "abc", True, id="one character"),
        pytest.param("a?c", "ac", False, id="not none"),
        pytest.param("*", "a\nb", True, id="whatever the name holds"),
        pytest.param("a", "a\n", False, id="no more than it says"),
    ],
)
def test_globs(pattern: str, name: str, allowed: bool) -> None:
    assert Scopes((Scope(Right.INFER, pattern),)).allow(Right.INFER, name) is allowed


@given(SCOPES)
def test_what_is_written_is_read_the_same(scope: Scope) -> None:
    assert parse_scope(str(scope)) == scope


@given(NAMES.filter(lambda name: len(name) <= 128), NAMES)
def test_a_pattern_without_wildcards_allows_its_own_name_only(name: str, other: str) -> None:
    scopes = Scopes((parse_scope(f"infer:{name}"),))
    assert scopes.allow(Right.INFER, name)
    assert scopes.allow(Right.INFER, other) is (other == name)


@given(PATTERNS, st.text("abAB09_.-", min_size=1, max_size=20))
def test_globs_mean_what_a_regular_expression_says(pattern: str, name: str) -> None:
    expression = "".join({"*": ".*", "?": "."}.get(character, re.escape(character)) for character in pattern)
    assert Scopes((Scope(Right.INFER, pattern),)).allow(Right.INFER, name) is (re.fullmatch(expression, name) is not None)


@given(st.lists(SCOPES, max_size=5), st.sampled_from(Right), NAMES)
def test_a_right_is_had_through_a_scope_of_its_own_or_admin(given_scopes: list[Scope], right: Right, name: str) -> None:
    scopes = Scopes(tuple(given_scopes))
    rights = {scope.right for scope in given_scopes}
    if scopes.allow(right, name):
        assert rights & {right, Right.ADMIN} or (right is Right.VIEWER and Right.OPERATOR in rights)
    if Right.ADMIN in rights or (right in rights and right is not Right.INFER):
        assert scopes.allow(right, name)
    assert scopes.allow_any_inference() is bool(rights & {Right.INFER, Right.ADMIN})


@given(st.lists(SCOPES, max_size=5), SCOPES, st.sampled_from(Right), NAMES)
def test_one_more_scope_never_takes_a_right_away(given_scopes: list[Scope], more: Scope, right: Right, name: str) -> None:
    if Scopes(tuple(given_scopes)).allow(right, name):
        assert Scopes((*given_scopes, more)).allow(right, name)


@pytest.mark.parametrize("right", Right)
def test_everything_and_nothing(right: Right) -> None:
    assert EVERYTHING.allow(right, "m")
    assert not Scopes(()).allow(right, "m")
    assert not Scopes(()).allow_any_inference()
