from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.cache.domain.shared_value import frame, name_of, unframe

KEYS = st.binary(min_size=32, max_size=32)


@given(key=KEYS, value=st.binary(max_size=300))
def test_what_was_framed_for_a_key_is_read_for_it(key: bytes, value: bytes) -> None:
    assert unframe(key, frame(key, value)) == value


@given(key=KEYS, other=KEYS, value=st.binary(max_size=100))
def test_another_keys_is_nothing(key: bytes, other: bytes, value: bytes) -> None:
    assert (unframe(other, frame(key, value)) == value) == (key == other)


@given(key=KEYS, framed=st.binary(max_size=300))
def test_anything_else_is_nothing(key: bytes, framed: bytes) -> None:
    assert unframe(key, framed) is None
    assert unframe(key, frame(key, b"")[:4] + framed) is None or framed == frame(key, b"")[4:]


@given(key=KEYS, value=st.binary(max_size=100), data=st.data())
def test_what_was_cut_lengthened_or_changed_anywhere_is_nothing(key: bytes, value: bytes, data: st.DataObject) -> None:
    framed = frame(key, value)
    assert unframe(key, framed[: data.draw(st.integers(0, len(framed) - 1))]) is None
    assert unframe(key, framed + data.draw(st.binary(min_size=1, max_size=8))) is None
    place, flipped = data.draw(st.integers(0, len(framed) - 1)), data.draw(st.integers(1, 255))
    assert unframe(key, framed[:place] + bytes([framed[place] ^ flipped]) + framed[place + 1 :]) is None


@pytest.mark.parametrize(("key", "name"), [(b"", b"tidegate:cache:01:"), (b"\0\xff" * 16, b"tidegate:cache:01:" + b"\0\xff" * 16)])
def test_where_it_lies(key: bytes, name: bytes) -> None:
    """Pins the layout: whoever changes it must change `FORMAT` too, which is in the key's name and in the
    value.
    """
    assert name_of(key) == name
    assert frame(key, b"value")[:4] == b"TGC\x01"
    assert len(frame(key, b"value")) == 4 + 16 + 5
