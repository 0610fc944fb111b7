from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.errors import InvalidRequest
from control_plane.core.infer_call import Frontend, Outcome
from control_plane.metering.domain.usage import Usage, UsageBatch, UsageEvent, UsageKey
from control_plane.metering.domain.usage_text import decode_batch, encode_batch, encode_log_line

_NAMES = st.text(max_size=20)  # half of a surrogate pair included
_COUNTS = st.integers(0, 2**70)
_EVENTS = st.builds(
    UsageEvent,
    ended_s=st.floats(0, 4e9),
    tenant=_NAMES,
    key_id=_NAMES,
    route=_NAMES,
    model=_NAMES,
    frontend=st.sampled_from(Frontend),
    outcome=st.sampled_from(Outcome),
    duration_s=st.floats(0, 1e6),
    rows=_COUNTS,
    elements=_COUNTS,
    compute_units=st.floats(0, 1e12),
    cache_hit=st.booleans(),
    server=_NAMES,
    status=st.none() | st.integers(0, 599),
    error=_NAMES,
    request_id=_NAMES,
)
_SUMS = st.tuples(
    st.builds(UsageKey, day=st.dates().map(str), tenant=_NAMES, model=_NAMES),
    st.builds(Usage, _COUNTS, _COUNTS, _COUNTS, _COUNTS, _COUNTS, st.floats(0, 1e12), _COUNTS),
)
SUM = (UsageKey("2026-06-10", "acme", "text_embedding"), Usage(1, 2, 3, 4, 5, 6.5, 7))
EVENT = UsageEvent(
    1781108130.5,
    "acme",
    "k1",
    "embed",
    "text_embedding",
    Frontend.GRPC,
    Outcome.ANSWERED,
    0.0123456,
    2,
    3,
    4.56789,
    False,
    "s1",
    3,
    "wrong shape",
    "id-1",
)


@given(st.builds(UsageBatch, st.text("0123456789abcdef", min_size=1), st.lists(_SUMS, max_size=5).map(tuple)))
def test_a_batch_is_read_as_it_was_written(batch: UsageBatch) -> None:
    assert decode_batch(encode_batch(batch)) == batch


@pytest.mark.parametrize("cut", [0, 1, 20, -1])
def test_what_was_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(InvalidRequest):
        decode_batch(encode_batch(UsageBatch("a", (SUM,)))[:cut])


@pytest.mark.parametrize("text", [b"[]", b'{"id":"a"}', b'{"id":"a","events":[]}', b'{"id":"a","sums":[{}]}', b"[" * 100_000, b"\xff"])
def test_what_is_no_batch_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a batch of usage"):
        decode_batch(text)


def test_a_log_line_tells_who_what_and_how_it_went() -> None:
    assert json.loads(encode_log_line(EVENT)) == {
        "time": "2026-06-10T16:15:30.500Z",
        "tenant": "acme",
        "key": "k1",
        "route": "embed",
        "model": "text_embedding",
        "frontend": "grpc",
        "outcome": "answered",
        "duration_ms": 12.346,
        "rows": 2,
        "elements": 3,
        "compute_units": 4.568,
        "cache_hit": False,
        "server": "s1",
        "status": 3,
        "error": "wrong shape",
        "request_id": "id-1",
    }


def test_units_that_are_not_known_yet_are_told_as_such() -> None:
    assert json.loads(encode_log_line(replace(EVENT, compute_units=None)))["compute_units"] is None


@given(_EVENTS)
def test_a_log_line_is_one_line_whatever_names_hold(event: UsageEvent) -> None:
    line = encode_log_line(event)
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert json.loads(line)["route"] == event.route
