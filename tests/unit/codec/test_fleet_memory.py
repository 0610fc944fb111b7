from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.codec.fleet_memory import decode, encode
from control_plane.domain.errors import InvalidRequest
from control_plane.domain.fleet_memory import Measured, Wish

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


@given(st.builds(Wish, st.none() | st.integers(0, 1000), is_withdrawn=st.booleans(), asked=TEXTS))
def test_so_do_wishes(wish: Wish) -> None:
    assert decode(Wish, "m", encode(wish)) == wish


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
    with pytest.raises(InvalidRequest, match="remembered of model"):
        decode(Measured, model, text)


def test_what_a_newer_one_has_added_is_left_out() -> None:
    assert decode(Wish, "m", b'{"min_copies":1,"colour":"blue"}') == Wish(1)
