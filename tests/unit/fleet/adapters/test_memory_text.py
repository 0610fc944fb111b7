from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from control_plane.core.errors import InvalidRequest
from control_plane.fleet.adapters.memory_text import decode, encode
from control_plane.fleet.domain.memory import DesiredState, Measured

SIZES, SECONDS, TEXTS = st.integers(0, 2**60), st.floats(0, 1e12), st.text()


@given(
    st.builds(
        Measured,
        SIZES,
        resident_bytes=st.none() | SIZES,
        load_s=st.none() | SECONDS,
        service_s=st.none() | SECONDS,
        failures=st.integers(0, 10**6),
        quarantined_until_s=SECONDS,
        why=TEXTS,
        answered=TEXTS,
        refusal=TEXTS,
    )
)
def test_what_is_known_comes_back_as_it_was(known: Measured) -> None:
    assert decode(Measured, "m", encode(known)) == known


@given(st.builds(DesiredState, st.none() | st.integers(0, 1000), is_suspended=st.booleans(), asked=TEXTS))
def test_so_do_wishes(wish: DesiredState) -> None:
    assert decode(DesiredState, "m", encode(wish)) == wish


@pytest.mark.parametrize(
    ("model", "text"),
    [
        pytest.param("m", b"", id="nothing"),
        pytest.param("m", b"{}", id="lacks its files' size"),
        pytest.param("m", b'{"file_bytes":1.5}', id="a size that is none"),
        pytest.param("m", b'{"file_bytes":true}', id="a size that is a truth"),
        pytest.param("m", b'{"file_bytes":1,"load_s":-1}', id="negative"),
        pytest.param("m", b'{"file_bytes":1,"load_s":1e999}', id="infinite"),
        pytest.param("m", b'{"file_bytes":1,"load_s":NaN}', id="no number"),
        pytest.param("m", b'{"file_bytes":1,"why":"\xff"}', id="no text"),
        pytest.param("", b'{"file_bytes":1}', id="no model"),
        pytest.param("a/../b", b'{"file_bytes":1}', id="a path"),
    ],
)
def test_what_cannot_be_is_refused(model: str, text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="record of model"):
        decode(Measured, model, text)


FIELDS = {each.name for kind in (Measured, DesiredState) for each in fields(kind)}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(10**400), 10**400) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.sampled_from([Measured, DesiredState]),
    st.fixed_dictionaries({"file_bytes": st.integers(0, 2**70)}, optional=dict.fromkeys(FIELDS - {"file_bytes"}, JSON)) | JSON,
    st.just("m") | st.text() | st.just("\ud800"),
)
@example(Measured, {"file_bytes": 10**400}, "m")
@example(Measured, {"file_bytes": 0, "failures": 2**63}, "m")
@example(DesiredState, {"min_replicas": 10**30}, "m")
@example(Measured, {"file_bytes": 0, "why": "\ud800"}, "m")
def test_whatever_it_is_it_is_refused_or_can_be_written_again(kind: Any, found: object, model: str) -> None:
    try:
        record = decode(kind, model, json.dumps(found))
    except InvalidRequest:
        return
    assert decode(kind, model, encode(record)) == record


@given(st.binary() | st.text())
def test_so_is_what_is_no_json(text: bytes | str) -> None:
    with suppress(InvalidRequest):
        decode(Measured, "m", text)


def test_what_a_newer_one_has_added_is_left_out() -> None:
    assert decode(DesiredState, "m", b'{"min_replicas":1,"colour":"blue"}') == DesiredState(1)
