from __future__ import annotations

import pytest

from control_plane.events.domain.event_id import event_id, number_in

FEED = "0a0b0c0d"


@pytest.mark.parametrize("number", [0, 1, 10**15 - 1])
def test_an_id_names_its_number(number: int) -> None:
    assert number_in(FEED, event_id(FEED, number)) == number


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("0a0b0c0e-1", id="another feed's"),
        pytest.param("", id="nothing"),
        pytest.param("1", id="a number alone"),
        pytest.param(f"{FEED}-", id="no number"),
        pytest.param(f"{FEED}-1\n", id="more behind it"),
        pytest.param(f"{FEED}-" + "9" * 300, id="a number too long"),
        pytest.param(f"{FEED.upper()}-1", id="other digits"),
    ],
)
def test_what_is_no_id_of_the_feed_has_no_number(text: str) -> None:
    assert number_in(FEED, text) is None
